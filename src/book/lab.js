// The part of a page that trains its mixer, and shows the states along the bits that the reader types; beside it, if
// asked for, its parent, on the same batches.

function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
// Only what is perfect reads 100.0 %.
const percent = x => `${(x < 1 ? Math.min(99.9, 100 * x) : 100).toFixed(1)} %`;
const largest = data => data.reduce((most, x) => Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most, 0);

// A model in its panel. `controls` tells what the reader has chosen.
function panelOf(place, lib, controls) {
  const $ = what => place.querySelector(what);
  const given = window.trained?.[place.dataset.mixer];
  let losses = [], steps = 0, model;

  function fresh() {
    losses = [];
    const range = 'signed' in place.dataset ? `eigenvalues = "${controls.signed() ? '-1..1' : '0..1'}"\n` : '';
    model = lib.make(place.dataset.settings.replace(/^seed = .*$/m, `seed = ${controls.seed()}`) + range);
    steps = model.steps;
    for (const cell of place.querySelectorAll('[data-len], .loss')) cell.textContent = '–';
  }

  // A model with random weights.
  function restart() {
    fresh();
    $('.told').textContent = `${model.parameters.toLocaleString('en')} random weights, not trained yet.`;
    draw();
  }

  // The model that was trained when the page was made: with the seed of the settings, and eigenvalues from −1 to 1 where
  // there is the choice.
  function open() {
    if (!given) return restart();
    fresh();
    losses = given.losses;
    lib.load(Uint8Array.from(atob(given.weights), c => c.charCodeAt(0)));
    tellAccuracy(given.accuracy);
    $('.told').textContent = `${model.parameters.toLocaleString('en')} weights, trained for ${steps} steps when this page was made: ${inWords(given.accuracy)}.`;
    draw();
  }

  const inWords = accuracy => accuracy.map(([len, share]) => `${percent(share)} right at length ${len}`).join(', ');
  function tellAccuracy(accuracy) {
    for (const [len, share] of accuracy) $(`[data-len="${len}"]`).textContent = percent(share);
  }

  // One step, if one is left; the accuracy every fifty steps and at the end.
  function step() {
    losses.push(lib.step(1));
    if (lib.steps() % 50 && lib.steps() < steps) return;
    const accuracy = lib.evaluate();
    tellAccuracy(accuracy);
    $('.told').textContent = `After ${lib.steps()} steps: loss ${losses.at(-1).toFixed(4)}, ${inWords(accuracy)}.`;
  }

  function draw() {
    $('.step').textContent = `${losses.length} of ${steps}`;
    if (losses.length) $('.loss').textContent = losses.at(-1).toFixed(4);
    drawCurve();
    drawStates();
  }

  function drawCurve() {
    const canvas = $('.curve'), c = canvas.getContext('2d'), style = getComputedStyle(document.documentElement);
    c.clearRect(0, 0, canvas.width, canvas.height);
    const x = i => i / steps * canvas.width, y = loss => 4 + (1 - Math.min(1, loss)) * (canvas.height - 8);
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
      run = lib.trace(controls.bits());
      $('.wrong').textContent = '';
    } catch (e) {
      $('.wrong').textContent = e.message;
      return;
    }
    const T = run.tokens.length, classes = run.logits.shape[0], at = controls.place(T, run.tokens);
    const said = run.tokens.map((_, t) => {
      const row = run.logits.data.slice(t * classes, (t + 1) * classes);
      return row.indexOf(Math.max(...row));
    });
    const right = said.filter((s, t) => s === run.targets[t]).length;
    const row = (head, texts, kind = () => '') => make('tr', {}, make('th', { scope: 'row' }, head),
      ...texts.map((text, t) => make('td', { class: `${kind(t)}${t === at ? ' at' : ''}` }, text)));
    const table = make('table', {},
      make('caption', { class: 'soft' }, `${right} of ${T} right`),
      row('bit', run.tokens),
      row('even?', run.targets.map(target => String(target ?? ''))),
      row('it says', said.map(String), t => said[t] === run.targets[t] ? 'right' : 'wrong'));
    const shown = run.blocks[0].filter(q => q.role !== 'vector');
    const strongest = q => make('span', { class: 'soft' }, `(strongest: ${Number(largest(q.data).toPrecision(2))})`);
    // Every state and gate over the bits, a column a bit.
    const overTime = shown.map(q => {
      const width = q.shape.reduce((a, b) => a * b, 1), most = largest(q.data);
      const canvas = make('canvas', { role: 'img', 'aria-label': `${q.symbol}: ${q.about}; a column a bit, ${width} numbers each, the largest ${most.toPrecision(3)}` });
      canvas.style.height = `${Math.max(14, Math.min(160, width * 5))}px`;
      paint(canvas, width, T, (r, t) => q.data[t * width + r] ?? NaN, most);
      return make('figure', {}, make('figcaption', {}, make('b', {}, q.symbol), ` ${q.about} `, strongest(q)), canvas);
    });
    // A memory after the chosen bit, a matrix for each head.
    const matrices = shown.filter(q => q.axes === 'hij').map(q => {
      const [heads, rows, columns] = q.shape, most = largest(q.data);
      const each = Array.from({ length: heads }, (_, h) => {
        const canvas = make('canvas', { role: 'img', 'aria-label': `${q.symbol} of head ${h + 1} after bit ${at + 1}` });
        paint(canvas, rows, columns, (r, c) => q.data[((at * heads + h) * rows + r) * columns + c] ?? NaN, most);
        return canvas;
      });
      return make('figure', { class: 'heads' }, make('figcaption', {}, make('b', {}, q.symbol), ` after bit ${at + 1}, a matrix for each head`), ...each);
    });
    const parts = run.eigenvalues[0].map((part, i) => {
      const width = part.shape.reduce((a, b) => a * b, 1), here = part.data.slice(at * width, (at + 1) * width).filter(Number.isFinite);
      const name = run.eigenvalues[0].length > 1 ? ['real parts', 'imaginary parts'][i] : 'gates' in place.dataset ? 'gates' : 'eigenvalues';
      return `${name} from ${Math.min(...here).toFixed(2)} to ${Math.max(...here).toFixed(2)}`.replaceAll('-', '−');
    });
    const spectrum = make('p', {}, parts.length ? `The transition at bit ${at + 1}: ${parts.join(', ')}.` : '');
    $('.seen').replaceChildren(table, spectrum, ...matrices, make('div', { class: 'quantities' }, ...overTime));
  }

  return { place, lib, given, restart, open, step, draw, drawStates, done: () => lib.steps() >= steps, told: text => { $('.told').textContent = text; } };
}

async function startLab() {
  const form = document.getElementById('lab');
  if (!form) return;
  const $ = id => document.getElementById(id), places = [...form.querySelectorAll('.panel')];
  const tell = text => { places[0].querySelector('.told').textContent = text; };
  readColours();
  if (!window.engine) return tell('The library for the browser is missing beside this page: engine.js.');
  const controls = {
    signed: () => $('signed')?.checked,
    seed: () => Math.min(9999, Math.max(0, Math.floor(Number($('seed').value)) || 0)),
    bits: () => $('bits').value,
    // The last bit, unless another was chosen.
    place(T, tokens) {
      const slider = $('place'), last = slider.value === slider.max;
      slider.max = T;
      if (last) slider.value = T;
      const at = Math.min(T, Number(slider.value)) - 1;
      slider.setAttribute('aria-valuetext', `bit ${at + 1} of ${T}: ${tokens[at]}`);
      return at;
    },
  };
  let panels = [], running = false, bytes, timer;
  const shown = () => panels.filter(panel => !panel.place.hidden);

  // The inspector's page of the models that are shown, in its frame, if that is open; soon, since it is much to draw.
  const mathematics = JSON.parse($('equations-set').textContent);
  function inspect() {
    clearTimeout(timer);
    if (!$('inspector').open || running) return;
    timer = setTimeout(() => {
      let all;
      try {
        all = shown().map(panel => panel.lib.inspect(controls.bits()));
      } catch { return; } // above the bits it says why
      const runs = all.map(({ runs: [run] }) => ({ ...run, name: run.title,
        equations: run.equations.map((equation, i) => [...equation, mathematics[run.mixer][i]]) }));
      const data = JSON.stringify({ ...all[0], runs }).replaceAll('<', '\\u003c');
      $('frame').srcdoc = window.inspectorPage.replace('@DATA@', () => data);
    }, 300);
  }

  // Begin with random weights, or with those that were trained before; Train then begins with random weights too.
  let trainedBefore = false;
  function begin(trained) {
    running = false;
    trainedBefore = trained;
    $('train').textContent = 'Train';
    $('train').disabled = false;
    $('restart').disabled = !trained;
    $('given').disabled = trained;
    for (const panel of panels) trained ? panel.open() : panel.restart();
    inspect();
  }
  const restart = () => begin(false);
  function open() {
    if ($('signed')) $('signed').checked = true;
    $('seed').value = $('seed').defaultValue;
    begin(true);
  }

  // Steps for a part of a frame, then the pictures, until it is done or stopped.
  function go() {
    if (!running) return;
    const left = () => shown().filter(panel => !panel.done());
    for (const start = performance.now(); left().length && performance.now() - start < 50;) {
      for (const panel of left()) {
        try {
          panel.step();
        } catch (e) {
          running = false;
          $('train').disabled = true;
          return panel.told(`${e.message} Start over, with another seed.`);
        }
      }
    }
    for (const panel of shown()) panel.draw();
    if (left().length) return setTimeout(go);
    running = false;
    $('train').textContent = 'Trained';
    $('train').disabled = true;
    inspect();
  }

  try {
    tell('Opening the library …');
    bytes = await unpacked(window.engine);
    delete window.engine;
    panels = [panelOf(places[0], await openLibrary(bytes), controls)];
    $('given').hidden = !panels[0].given;
    begin(Boolean(panels[0].given));
  } catch (e) {
    $('train').disabled = true;
    return tell(e.message);
  }
  $('train').addEventListener('click', () => {
    if (trainedBefore) restart();
    running = !running;
    $('train').textContent = running ? 'Pause' : 'Go on';
    $('restart').disabled = $('given').disabled = false;
    go();
    inspect();
  });
  $('restart').addEventListener('click', restart);
  $('given').addEventListener('click', open);
  $('signed')?.addEventListener('change', restart);
  // Of two models only the parent may have the switch.
  const offer = () => { if ($('signed')) $('signed').parentElement.hidden = !places.some(place => !place.hidden && 'signed' in place.dataset); };
  offer();
  $('seed').addEventListener('change', () => { $('seed').value = controls.seed(); restart(); });
  $('beside')?.addEventListener('change', async () => {
    places[1].hidden = !$('beside').checked;
    form.classList.toggle('two', $('beside').checked);
    offer();
    if (!panels[1]) panels[1] = panelOf(places[1], await openLibrary(bytes), controls);
    begin(trainedBefore);
  });
  for (const id of ['bits', 'place']) $(id).addEventListener('input', () => shown().forEach(panel => panel.drawStates()));
  $('bits').addEventListener('input', inspect);
  $('inspector').addEventListener('toggle', inspect);
  form.addEventListener('submit', event => event.preventDefault());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); shown().forEach(panel => panel.draw()); });
  // For the test in a browser.
  window.lab = { lib: panels[0].lib, panels: () => panels };
}
