// An equation and the lines that compute it light up together.
{
  const linesOf = row => (row.dataset.lines ?? '').split(',').filter(Boolean).flatMap(range => {
    const [from, to] = range.slice(1).split('-').map(Number);
    return Array.from({ length: to - from + 1 }, (_, i) => document.getElementById(`${range[0]}${from + i}`)).filter(Boolean);
  });
  const light = row => {
    for (const lit of document.querySelectorAll('.lit')) lit.classList.remove('lit');
    if (!row) return;
    row.classList.add('lit');
    for (const line of linesOf(row)) line.classList.add('lit');
  };
  // The code scrolls inside its own frame, and the page to it where it is out of sight.
  const show = (row, first = linesOf(row)[0]) => {
    light(row);
    if (!first) return;
    const source = first.closest('.source');
    const by = first.getBoundingClientRect().top - source.getBoundingClientRect().top;
    source.scrollTop += by - 60;
    const frame = source.getBoundingClientRect();
    if (frame.top > innerHeight - 80 || frame.bottom < 80) source.scrollIntoView({ block: 'nearest' });
  };
  for (const row of document.querySelectorAll('li[data-lines]')) {
    row.addEventListener('click', event => {
      if (event.target.closest('a:not(.lines)') || String(getSelection())) return;
      const link = event.target.closest('.lines');
      if (link) { event.preventDefault(); history.replaceState(null, '', link.hash); }
      const line = link ? document.querySelector(link.hash) : undefined;
      show(row, line);
      // As the link itself would: what comes next by Tab is behind the line.
      if (line) { line.tabIndex = -1; line.focus({ preventScroll: true }); }
    });
  }
  for (const back of document.querySelectorAll('.back')) {
    back.addEventListener('click', () => light(document.querySelector(back.hash)));
  }
}

startLab();
startTour();
