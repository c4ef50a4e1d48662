// Figures. Each is an element with a function `update` that draws the selected step.

// A heat map: `of(t)` gives { rows, columns, at, most, later }, `pick(r, c)` is called on a click, `marked()` is the cell that
// is framed, `say(r, c)` names a cell, `labels` stand below the columns. A cell that `later(r, c)` is true of has no
// number yet. With `overTime` a column is a step, and a line marks the selected one. A heat map with a `key` does not
// depend on the step and is painted once.
function heatMap({ label, of, pick, marked, say, cell = 18, overTime = false, quantityName, labels = [] }) {
  const canvas = el('canvas', { role: 'img', 'aria-label': label });
  const frame = el('div', { class: overTime ? 'cursor' : 'frame' });
  const box = el('div', { class: 'map' + (overTime ? ' wide' : '') }, canvas, frame);
  const readout = el('span', { class: 'readout' });
  const scale = el('span', { class: 'scale', title: 'What the strongest colour stands for' });
  const figure = el('figure', { 'data-quantity': quantityName },
    el('figcaption', {}, el('b', {}, label), scale), box,
    labels.length ? el('div', { class: 'labels', 'aria-hidden': 'true', style: `width:${labels.length * cell}px` }, ...labels.map(x => el('span', {}, x))) : undefined, readout);
  let shown;
  const cellAt = event => {
    const area = canvas.getBoundingClientRect();
    const part = (x, from, length, n) => Math.max(0, Math.min(n - 1, Math.floor((x - from) / length * n)));
    return [part(event.clientY, area.top, area.height, shown.rows), part(event.clientX, area.left, area.width, shown.columns)];
  };
  const tell = (r, c) => { readout.textContent = `${say(r, c)} ${shown.later?.(r, c) ? 'comes later' : `= ${short(shown.at(r, c))}`}`; };
  const rest = () => { const cell = marked && marked(); if (cell) tell(...cell); else readout.textContent = '\u00a0'; };
  canvas.addEventListener('pointermove', e => tell(...cellAt(e)));
  canvas.addEventListener('pointerleave', rest);
  canvas.addEventListener('click', e => { pick(...cellAt(e)); });
  // By keys, but over time, where the arrows choose the step as everywhere.
  if (!overTime) {
    canvas.tabIndex = 0;
    // A click leaves the focus where it is, so that the arrows still choose the step.
    canvas.addEventListener('mousedown', e => e.preventDefault());
    canvas.addEventListener('keydown', e => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
      if (!by || e.altKey || e.ctrlKey || e.metaKey) return;
      e.preventDefault();
      e.stopPropagation();
      const [r, c] = (marked && marked()) ?? [0, 0], within = (x, n) => Math.max(0, Math.min(n - 1, x));
      pick(within(r + by[0], shown.rows), within(c + by[1], shown.columns));
    });
  }
  return {
    figure,
    update() {
      shown = of(sel.t);
      if (shown.key === undefined || box.dataset.key !== shown.key) {
        paint(canvas, shown.rows, shown.columns, shown.at, shown.most);
        box.dataset.key = shown.key;
        scale.textContent = ` ±${short(shown.most)}`;
      }
      box.style.aspectRatio = overTime ? '' : `${shown.columns} / ${shown.rows}`;
      box.style.width = overTime ? '100%' : `${shown.columns * cell}px`;
      box.style.height = overTime ? `${Math.max(24, Math.min(200, shown.rows * 8))}px` : '';
      const at = overTime ? [0, sel.t] : marked && marked();
      frame.hidden = !at;
      if (at) {
        const share = (x, n) => `${100 * x / n}%`;
        frame.style.left = share(at[1], shown.columns);
        frame.style.width = share(1, shown.columns);
        frame.style.top = overTime ? '0' : share(at[0], shown.rows);
        frame.style.height = overTime ? '100%' : share(1, shown.rows);
      }
      rest();
    },
  };
}

// Lines over the steps. `lines()` gives [{ label, at(t) }], all on one axis from `range()`.
function traces({ label, lines, range, quantityName }) {
  const svg = el('svg:svg', { class: 'plot lines', preserveAspectRatio: 'none', role: 'img', 'aria-label': label });
  const cursor = el('div', { class: 'cursor' });
  const high = el('span', { class: 'high' }), low = el('span', { class: 'low' }), zero = el('span', { class: 'zero' });
  const box = el('div', { class: 'map wide trace' }, svg, cursor, high, low, zero);
  const key = el('span', { class: 'readout' });
  const figure = el('figure', { 'data-quantity': quantityName }, el('figcaption', {}, el('b', {}, label), ' ', key), box);
  box.addEventListener('click', e => {
    const area = svg.getBoundingClientRect();
    go(Math.floor((e.clientX - area.left) / area.width * T));
  });
  let drawn;
  return {
    figure,
    update() {
      const all = lines(), [lo, hi] = range();
      const y = x => Number((100 - 100 * (x - lo) / (hi - lo)).toFixed(2));
      if (drawn !== sel.layer) {
        svg.setAttribute('viewBox', `0 0 ${T} 100`);
        const points = line => Array.from({ length: T }, (_, t) => `${t + .5},${y(line.at(t))}`);
        const level = (x, c) => el('svg:line', { class: c, x1: 0, x2: T, y1: y(x), y2: y(x) });
        svg.replaceChildren(...[0, 1, -1].filter(x => x >= lo && x <= hi).map(x => level(x, x ? 'grid' : 'axis')),
          ...all.map((line, i) => {
            const path = points(line);
            return el('svg:polyline', { class: `line s${i % 8}`, points: path.length > 1 ? path.join(' ') : `0,${path[0].split(',')[1]} ${T},${path[0].split(',')[1]}` });
          }));
        drawn = sel.layer;
      }
      high.textContent = short(hi);
      low.textContent = short(lo);
      zero.textContent = y(0) > 15 && y(0) < 85 ? '0' : '';
      zero.style.top = `${y(0)}%`;
      cursor.style.left = `${100 * sel.t / T}%`;
      cursor.style.width = `${100 / T}%`;
      key.replaceChildren(...all.flatMap((line, i) => [
        el('span', { class: `swatch s${i % 8}` }), `${line.label ? line.label + ' ' : ''}${short(line.at(sel.t))} `]));
    },
  };
}

// Numbers on a line from −1 to 1, at this step; hundreds as bars of how many lie where.
function numberLine({ label, points }) {
  const svg = el('svg:svg', { class: 'plot', viewBox: '0 0 440 62', role: 'img', 'aria-label': label });
  const figure = el('figure', { class: 'number-line' }, el('figcaption', {}, el('b', {}, label)), svg);
  return {
    figure,
    update() {
      const all = points();
      const most = Math.max(1, ...all.map(p => Math.abs(p.x)));
      const x = v => (220 + 200 * v / most).toFixed(1);
      const tick = v => [el('svg:line', { class: 'axis', x1: x(v), x2: x(v), y1: 34, y2: 42 }),
        el('svg:text', { class: 'tick middle', x: x(v), y: 56 }, short(v))];
      const y = p => 38 - 7 * (p.lane % 5);
      const dot = p => el('svg:circle', { class: `dot s${p.style % 8}`, cx: x(p.x), cy: y(p), r: 5 },
        el('svg:title', {}, `${p.label}: ${short(p.x)}`));
      const bins = () => {
        const counts = Array(40).fill(0);
        for (const p of all) counts[Math.max(0, Math.min(39, Math.floor(20 + 20 * p.x / most)))]++;
        const highest = Math.max(...counts), from = i => most * (i / 20 - 1);
        return counts.flatMap((n, i) => n === 0 ? [] : [el('svg:rect', { class: 'bin s0', x: 20 + 10 * i, width: 9, y: 37 - 34 * n / highest, height: 34 * n / highest },
          el('svg:title', {}, `${n} of ${all.length} from ${short(from(i))} to ${short(from(i + 1))}`))]);
      };
      const dots = all.length <= 64 ? all.map(dot) : bins();
      svg.replaceChildren(el('svg:line', { class: 'axis', x1: 20, x2: 420, y1: 38, y2: 38 }), ...[-1, 0, 1].flatMap(tick), ...dots);
    },
  };
}

// Complex numbers on the unit disc; the size of a dot is its weight. Hundreds are squares, the fuller the more lie there.
function disc({ label, points, pick }) {
  const svg = el('svg:svg', { class: 'plot disc', viewBox: '-115 -115 230 230', role: 'img', 'aria-label': label });
  const readout = el('span', { class: 'readout' });
  const figure = el('figure', {}, el('figcaption', {}, el('b', {}, label), ' ', readout), svg);
  return {
    figure,
    update() {
      const all = points();
      const dot = p => {
        const ring = el('svg:circle', { class: `dot s${p.style % 8}${p.marked ? ' marked' : ''}`, cx: (100 * p.re).toFixed(2),
          cy: (-100 * p.im).toFixed(2), r: p.r.toFixed(2) }, el('svg:title', {}, `${p.label}: ${short(p.re)} ${p.im < 0 ? '−' : '+'} ${short(Math.abs(p.im))} i`));
        if (pick) ring.addEventListener('click', () => pick(p.index));
        return ring;
      };
      const marked = all.find(p => p.marked) ?? all[0];
      const squares = () => {
        const SIDE = 8, counts = new Map();
        for (const p of all) {
          const at = [100 * p.re, -100 * p.im].map(x => Math.floor(Math.max(-112, Math.min(111, x)) / SIDE) * SIDE).join();
          counts.set(at, (counts.get(at) ?? 0) + 1);
        }
        const most = Math.max(...counts.values());
        return [...counts].map(([at, n]) => el('svg:rect', { class: 'bin s0', x: at.split(',')[0], y: at.split(',')[1], width: SIDE, height: SIDE, 'fill-opacity': (.15 + .85 * n / most).toFixed(2) },
          el('svg:title', {}, `${n} of ${all.length}`)));
      };
      const dots = all.length <= 64 ? all.map(dot) : [...squares(), dot({ ...marked, r: 4, marked: true })];
      const text = (x, y, s, c) => el('svg:text', { class: `tick ${c}`, x, y }, s);
      svg.replaceChildren(el('svg:circle', { class: 'ring', r: 100 }), el('svg:line', { class: 'grid', x1: -108, x2: 108 }),
        el('svg:line', { class: 'grid', y1: -108, y2: 108 }), text(106, 14, '1', 'middle'), text(-106, 14, '−1', 'middle'),
        text(5, -104, 'i', ''), ...dots);
      if (marked) {
        const size = Math.hypot(marked.re, marked.im), angle = degrees(marked.re, marked.im);
        readout.textContent = `${marked.label}: magnitude ${short(size)}, angle ${short(angle)}°`;
      }
    },
  };
}
