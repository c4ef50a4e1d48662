// The part of a page that trains its mixer, and shows the states along the bits that the reader types.
async function startLab() {
  const form = document.getElementById('lab');
  if (!form) return;
  const $ = id => document.getElementById(id);
  const told = text => { $('told').textContent = text; };
  const percent = x => `${(100 * x).toFixed(1)} %`;
  let lib, running = false, losses = [], steps = 0;
  readColours();
  if (!window.engine) return told('The library for the browser is missing beside this page: engine.js.');

  const settings = () => {
    const range = $('signed') ? `eigenvalues = "${$('signed').checked ? '-1..1' : '0..1'}"\n` : '';
    return form.dataset.settings.replace(/^seed = .*$/m, `seed = ${Math.max(0, Math.floor(Number($('seed').value)) || 0)}`) + range;
  };

  // A fresh model.
  function restart() {
    running = false;
    losses = [];
    const about = lib.make(settings());
    steps = about.steps;
    $('train').textContent = 'Train';
    $('train').disabled = false;
    $('restart').disabled = true;
    for (const cell of form.querySelectorAll('[data-len]')) cell.textContent = '–';
    $('loss').textContent = '–';
    told(`${about.parameters.toLocaleString('en')} random weights, not trained yet.`);
    draw();
  }

  function draw() {
    $('at').textContent = `${lib.steps()} of ${steps}`;
    if (losses.length) $('loss').textContent = losses.at(-1).toFixed(4);
    drawCurve();
    drawStates();
  }

  function evaluated() {
    const accuracy = lib.evaluate();
    for (const [len, share] of accuracy) form.querySelector(`[data-len="${len}"]`).textContent = percent(share);
    told(`After ${lib.steps()} steps: loss ${losses.at(-1).toFixed(4)}, ${accuracy.map(([len, share]) => `${percent(share)} right at length ${len}`).join(', ')}.`);
  }

  // Steps for a part of a frame, then the picture, until it is done or stopped.
  function go() {
    if (!running) return;
    try {
      const start = performance.now(), before = Math.floor(lib.steps() / 50);
      while (lib.steps() < steps && performance.now() - start < 60 && Math.floor(lib.steps() / 50) === before) losses.push(lib.step(1));
      draw();
      const done = lib.steps() >= steps;
      if (done || Math.floor(lib.steps() / 50) > before) evaluated();
      if (done) {
        running = false;
        $('train').textContent = 'Trained';
        $('train').disabled = true;
        return;
      }
      setTimeout(go);
    } catch (e) {
      running = false;
      $('train').disabled = true;
      told(`${e.message} Start over, with another seed.`);
    }
  }

  function drawCurve() {
    const canvas = $('curve'), c = canvas.getContext('2d'), style = getComputedStyle(document.documentElement);
    c.clearRect(0, 0, canvas.width, canvas.height);
    const most = 1, x = i => i / steps * canvas.width, y = loss => 4 + (1 - Math.min(most, loss) / most) * (canvas.height - 8);
    const line = (colour, width, points) => {
      c.strokeStyle = style.getPropertyValue(colour);
      c.lineWidth = width;
      c.beginPath();
      points.forEach(([px, py], i) => i ? c.lineTo(px, py) : c.moveTo(px, py));
      c.stroke();
    };
    // A guess costs ln 2.
    line('--axis', 1, [[0, y(Math.LN2)], [canvas.width, y(Math.LN2)]]);
    line('--c1', 2, losses.map((loss, i) => [x(i + 1), y(loss)]));
    canvas.setAttribute('aria-label', losses.length ? `The loss over ${losses.length} steps: from ${losses[0].toFixed(3)} to ${losses.at(-1).toFixed(3)}; a guess costs 0.693` : 'The loss: no step is taken yet');
  }

  function drawStates() {
    let run;
    try {
      run = lib.trace($('bits').value);
      $('wrong').textContent = '';
    } catch (e) {
      $('wrong').textContent = e.message;
      return;
    }
    const T = run.tokens.length, classes = run.logits.shape[0], slider = $('place');
    // The last bit, unless another was chosen.
    const last = slider.value === slider.max;
    slider.max = T;
    if (last) slider.value = T;
    const at = Math.min(T, Number(slider.value)) - 1;
    slider.setAttribute('aria-valuetext', `bit ${at + 1} of ${T}: ${run.tokens[at]}`);
    const said = run.tokens.map((_, t) => {
      const row = run.logits.data.slice(t * classes, (t + 1) * classes);
      return row.indexOf(Math.max(...row));
    });
    const right = said.filter((s, t) => s === run.targets[t]).length;
    const make = (name, attributes, ...children) => {
      const node = document.createElement(name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      node.append(...children);
      return node;
    };
    const row = (head, texts, kind = () => '') => make('tr', {}, make('th', { scope: 'row' }, head),
      ...texts.map((text, t) => make('td', { class: `${kind(t)}${t === at ? ' at' : ''}` }, text)));
    const table = make('table', { class: 'seen' },
      make('caption', { class: 'soft' }, `${right} of ${T} right`),
      row('bit', run.tokens),
      row('even?', run.targets.map(target => String(target ?? ''))),
      row('it says', said.map(String), t => said[t] === run.targets[t] ? 'right' : 'wrong'));
    const figures = run.blocks[0].filter(q => q.role !== 'vector').map(q => {
      const width = q.shape.reduce((a, b) => a * b, 1), most = q.data.reduce((m, x) => Number.isFinite(x) ? Math.max(m, Math.abs(x)) : m, 0);
      const canvas = make('canvas', { role: 'img', 'aria-label': `${q.symbol}: ${q.about}; a column a bit, ${width} numbers each, the largest ${most.toPrecision(3)}` });
      canvas.style.height = `${Math.max(14, Math.min(160, width * 5))}px`;
      paint(canvas, width, T, (r, t) => q.data[t * width + r] ?? NaN, most);
      return make('figure', {}, make('figcaption', {}, make('b', {}, q.symbol), ` ${q.about} `, make('span', { class: 'soft' }, `(strongest: ${most.toPrecision(2)})`)), canvas);
    });
    // A memory after the chosen bit, a matrix for each head.
    const matrices = run.blocks[0].filter(q => q.axes === 'hij').map(q => {
      const [heads, rows, columns] = q.shape, most = q.data.reduce((m, x) => Number.isFinite(x) ? Math.max(m, Math.abs(x)) : m, 0);
      const each = Array.from({ length: heads }, (_, h) => {
        const canvas = make('canvas', { role: 'img', 'aria-label': `${q.symbol} of head ${h + 1} after bit ${at + 1}` });
        paint(canvas, rows, columns, (r, c) => q.data[((at * heads + h) * rows + r) * columns + c] ?? NaN, most);
        return canvas;
      });
      return make('figure', { class: 'heads' }, make('figcaption', {}, make('b', {}, q.symbol), ` after bit ${at + 1}, a matrix for each head`), ...each);
    });
    const ran = run.eigenvalues[0].map((e, i) => [e, i]).filter(([e]) => e.data.length);
    const spread = ran.map(([e, i]) => {
      const width = e.shape.reduce((a, b) => a * b, 1), here = e.data.slice(at * width, (at + 1) * width).filter(Number.isFinite);
      const name = ran.length > 1 ? ['real parts', 'imaginary parts'][i] : 'eigenvalues';
      return `${name} from ${Math.min(...here).toFixed(2)} to ${Math.max(...here).toFixed(2)}`.replaceAll('-', '−');
    });
    const spectrum = make('p', {}, spread.length ? `The transition at bit ${at + 1}: ${spread.join(', ')}.` : '');
    $('seen').replaceChildren(table, spectrum, ...matrices, make('div', { class: 'quantities' }, ...figures));
  }

  try {
    told('Opening the library …');
    lib = await openLibrary(await unpacked(window.engine));
    delete window.engine;
    restart();
  } catch (e) {
    $('train').disabled = true;
    return told(e.message);
  }
  $('train').addEventListener('click', () => {
    running = !running;
    $('train').textContent = running ? 'Pause' : 'Go on';
    $('restart').disabled = false;
    go();
  });
  $('restart').addEventListener('click', restart);
  $('signed')?.addEventListener('change', restart);
  $('seed').addEventListener('change', restart);
  $('bits').addEventListener('input', drawStates);
  $('place').addEventListener('input', drawStates);
  form.addEventListener('submit', event => event.preventDefault());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); draw(); });
  // For the test in a browser.
  window.lab = { lib, settings };
}
