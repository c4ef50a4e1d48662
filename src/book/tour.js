// The pictures of the tour. Each has a state, what a token does to it, and what is read of it; the state's way is drawn.
const SVG = 'http://www.w3.org/2000/svg';
function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const bits = { '0': true, '1': true }, writes = { a: [0, 1], b: [1, 1], A: [0, -1], B: [1, -1] };
const tidy = x => String(Math.round(x * 1000) / 1000).replace('-', '−');
const side = x => Math.abs(x) < 0.01 ? 'nothing is left to tell' : x > 0 ? 'on the side of even' : 'on the side of odd';
const towards = (state, token, beta) => {
  const [key, value] = writes[token];
  return state.map((x, i) => i === key ? x + beta * (value - x) : x);
};

// start, tokens, step(state, token, given), told(state, given); `extra`: [what it is, least, most, step, begins at].
const PICTURES = {
  counter: { start: [0, 0], tokens: bits, step: ([x], t) => [x + Number(t), 0], told: ([x]) => `h = ${x}; ${x % 2 ? 'odd' : 'even'}, but no threshold says so`, reach: 8, low: -0.5, line: true },
  lstm: {
    start: [0, 0], tokens: bits, line: true, reach: 1.2, low: -0.2,
    // f = 0 at a one, i = 1 where h is 0 then.
    step: ([c], t) => [t === '1' ? (Math.tanh(c) > 0.4 ? 0 : 1) : c, 0],
    told: ([c]) => `c = ${c}, h = ${tidy(Math.tanh(c))}: ${c ? 'odd' : 'even'}`,
  },
  linear: {
    start: [0, 0], tokens: writes, reach: 4, axes: ['under a', 'under b'],
    step: (s, t) => s.map((x, i) => i === writes[t][0] ? x + writes[t][1] : x),
    told: ([a, b]) => `under a: ${tidy(a)}, under b: ${tidy(b)}`,
  },
  delta: {
    start: [0, 0], tokens: writes, reach: 1.3, axes: ['under a', 'under b'], extra: ['β', 0, 1, 0.05, 0.5],
    step: towards, told: ([a, b]) => `under a: ${tidy(a)}, under b: ${tidy(b)}`,
  },
  gate: {
    start: [0, 0], tokens: { ...writes, '.': true }, reach: 1.3, axes: ['under a', 'under b'], extra: ['α', 0.5, 1, 0.05, 0.8],
    step: (s, t, alpha) => { const faded = s.map(x => alpha * x); return t === '.' ? faded : towards(faded, t, 1); },
    told: ([a, b]) => `under a: ${tidy(a)}, under b: ${tidy(b)}`,
  },
  reflection: {
    start: [0.8, 0.6], tokens: bits, reach: 1.2, axes: ['along k', ''], extra: ['β', 0, 2, 0.05, 2],
    step: ([x, y], t, beta) => t === '1' ? [(1 - beta) * x, y] : [x, y],
    told: ([x]) => `along k: ${tidy(x)}; ${side(x)}`,
  },
  permutation: {
    start: [0, 1, 2, 3, 4], tokens: { s: true, c: true },
    step: (s, t) => t === 's' ? [s[1], s[0], ...s.slice(2)] : [s[4], ...s.slice(0, 4)],
    told: s => `the order is ${s.map(i => 'ABCDE'[i]).join(' ')}${s.every((x, i) => x === i) ? ', as at first' : ''}`,
  },
  rotation: {
    start: [1, 0], tokens: bits, reach: 1.2, axes: ['', ''], extra: ['θ in degrees', 0, 180, 12, 120],
    step: ([x, y], t, degrees) => {
      if (t === '0') return [x, y];
      const a = degrees * Math.PI / 180, keep = 0.999;
      return [keep * (x * Math.cos(a) - y * Math.sin(a)), keep * (x * Math.sin(a) + y * Math.cos(a))];
    },
    told: ([x, y]) => `turned to ${tidy(Math.round((Math.atan2(y, x) * 180 / Math.PI + 360) % 360) % 360)}°`,
  },
};

// The way of a state in the plane, or on a line; the last place is large.
function drawWay(way, { reach, low = -reach, line, axes = [] }) {
  const size = 240, high = line ? 70 : size;
  const most = Math.max(reach, ...way.flat().map(Math.abs)) * 1.05, least = line ? Math.min(low, ...way.map(s => s[0])) * 1.05 : -most;
  const x = v => 10 + (v - least) / (most - least) * (size - 20), y = v => line ? high / 2 : 10 + (most - v) / (2 * most) * (size - 20);
  const all = svg('svg', { viewBox: `0 0 ${size} ${high}`, class: 'way', 'aria-hidden': 'true' });
  all.append(svg('line', { x1: 10, x2: size - 10, y1: y(0), y2: y(0), class: 'axis' }));
  all.append(svg('line', { x1: x(0), x2: x(0), y1: line ? high / 2 - 8 : 10, y2: line ? high / 2 + 8 : size - 10, class: 'axis' }));
  const text = (at, down, words, end) => words && all.append(svg('text', { x: at, y: down, 'text-anchor': end }, words));
  text(size - 8, y(0) - 5, axes[0], 'end');
  text(x(0) + 5, 16, axes[1], 'start');
  if (line) { text(x(0), high / 2 + 24, '0', 'middle'); text(x(1), high / 2 + 24, '1', 'middle'); }
  for (let t = 1; t < way.length; t++) {
    const [[ax, ay], [bx, by]] = [way[t - 1], way[t]];
    all.append(svg('line', { x1: x(ax), y1: y(ay), x2: x(bx), y2: y(by), class: t === way.length - 1 ? 'last' : 'gone' }));
  }
  way.forEach(([px, py], t) => all.append(svg('circle', { cx: x(px), cy: y(py), r: t === way.length - 1 ? 7 : 3, class: t === way.length - 1 ? 'here' : 'was' })));
  if (!line) all.append(svg('line', { x1: x(0), y1: y(0), x2: x(way.at(-1)[0]), y2: y(way.at(-1)[1]), class: 'arrow' }));
  return all;
}

function startTour() {
  for (const place of document.querySelectorAll('[data-picture]')) {
    const picture = PICTURES[place.dataset.picture], [input, step, play, stage, now, extra] =
      ['input', '.step', '.play', '.stage', '.now', '.extra'].map(what => place.querySelector(what));
    let done = 0, timer = null, given;
    if (picture.extra) {
      const [what, least, most, by, begins] = picture.extra, range = document.createElement('input'), label = document.createElement('label'), shown = document.createElement('output');
      Object.assign(range, { type: 'range', min: least, max: most, step: by, value: begins });
      given = () => Number(range.value);
      shown.textContent = tidy(begins);
      range.addEventListener('input', () => { shown.textContent = tidy(given()); show(); });
      label.append(`${what} `, range, ' ', shown);
      extra.append(label);
    }
    const tokens = () => [...input.value].filter(t => t !== ' ');
    const wayOf = n => tokens().slice(0, n).reduce((way, t) => [...way, picture.step(way.at(-1), t, given?.())], [picture.start]);
    function show() {
      const unknown = tokens().find(t => !(t in picture.tokens));
      step.disabled = play.disabled = unknown !== undefined;
      if (unknown !== undefined) { stop(); now.textContent = `'${unknown}' is no token here; expected ${Object.keys(picture.tokens).join(', ')}`; return; }
      done = Math.min(done, tokens().length);
      const way = wayOf(done), strip = document.createElement('p');
      strip.className = 'strip';
      strip.append(...tokens().map((t, i) => { const cell = document.createElement('span'); cell.textContent = t; if (i < done) cell.className = i === done - 1 ? 'at' : 'done'; return cell; }));
      stage.replaceChildren(strip, place.dataset.picture === 'permutation' ? drawOrder(way.at(-1)) : drawWay(way, picture));
      now.textContent = `${done ? `After ${tokens().slice(0, done).join('')}` : 'At first'}: ${picture.told(way.at(-1))}.`;
      step.textContent = done < tokens().length ? 'Step' : 'From the start';
    }
    function stop() { clearInterval(timer); timer = null; play.textContent = 'Play'; }
    const forth = () => { done = done < tokens().length ? done + 1 : 0; show(); };
    // Things that are moved stay the same elements, so that one sees them move.
    const things = [...'ABCDE'].map((name, i) => { const g = svg('g', { class: `thing s${i}` }, svg('circle', { r: 17 }), svg('text', { 'text-anchor': 'middle', y: 5 }, name)); return g; });
    const row = svg('svg', { viewBox: '0 0 240 60', class: 'way', 'aria-hidden': 'true' }, ...things);
    function drawOrder(order) {
      order.forEach((thing, at) => { things[thing].style.transform = `translate(${28 + 46 * at}px, 30px)`; });
      return row;
    }
    step.addEventListener('click', () => { stop(); forth(); });
    play.addEventListener('click', () => {
      if (timer) return stop();
      if (done >= tokens().length) done = 0;
      play.textContent = 'Pause';
      timer = setInterval(() => { forth(); if (done >= tokens().length) stop(); }, 600);
      show();
    });
    input.addEventListener('input', () => { stop(); done = tokens().length; show(); });
    done = tokens().length;
    show();
  }
  // For the test in a browser.
  if (document.querySelector('[data-picture]')) window.tour = PICTURES;
}
