// A step, told in words.

// Of each state of a run's block, the element that a step changes most: { q, by, over, from, to }, `by` as a part of the
// largest magnitude that the state ever has.
function largestChange(run, layer, t) {
  let most = null;
  for (const q of run.quantities.filter(q => q.role === 'state')) {
    const tensor = run.layers[layer]?.[q.name];
    // A choice of units is no memory, and neither is whether anything has been read.
    if (!tensor || q.about.startsWith('stabiliser') || q.about.startsWith('1 after the first')) continue;
    const whole = q.about.startsWith('the angle') ? 2 * Math.PI : 0; // an angle and the next turn's are the same
    const all = numbers(tensor), w = tensor.width, scale = reach(tensor) || 1;
    for (let i = 0; i < w; i++) {
      const to = all[t * w + i], from = t > 0 ? all[(t - 1) * w + i] : 0, change = to - from - (whole && whole * Math.round((to - from) / whole)), by = Math.abs(change) / scale;
      if (by < Infinity && by > (most?.by ?? 0)) most = { q, by, at: i, from, to, shape: tensor.shape };
    }
  }
  if (most) {
    most.over = {};
    let rest = most.at;
    for (const [axis, letter] of [...[...most.q.axes].entries()].reverse()) {
      most.over[letter] = rest % most.shape[axis];
      rest = Math.floor(rest / most.shape[axis]);
    }
  }
  return most;
}

// The tokens that attention reads most at a step, at a head: { s, p } from the largest.
function readMost(run, layer, t, h) {
  const q = run.quantities.find(q => q.role === 'attention'), tensor = q && run.layers[layer]?.[q.name];
  // A token that is not active reads nothing.
  const active = run.layers[layer]?.active;
  if (!tensor || (active && numbers(active)[t] === 0)) return [];
  const all = numbers(tensor), start = t * tensor.width + (q.axes.includes('h') ? Math.min(h, tensor.shape[0] - 1) * T : 0);
  return Array.from({ length: t + 1 }, (_, s) => ({ s, p: all[start + s] })).sort((a, b) => b.p - a.p);
}

// The step to open at: where a state changes most, with something before it, or where attention is surest of what it reads.
function tellingStep() {
  let best = { t: Math.min(1, T - 1), by: 0 };
  for (let t = 1; t < T; t++) {
    const change = largestChange(D.runs[0], 0, t);
    if (change && change.by > best.by) best = { t, by: change.by, over: change.over };
    const [most] = change ? [] : readMost(D.runs[0], 0, t, 0), by = most ? most.p * (t + 1) : 0;
    if (by > best.by) best = { t, by, over: { s: most.s } };
  }
  return best;
}

// The effect of a real factor on the state.
function fate(x) {
  const size = Math.abs(x), turns = x < 0 ? 'turns over and ' : '';
  if (size <= 0.05) return 'is erased';
  if (size < 0.98) return `${turns}shrinks to ${short(size)} of itself`;
  if (size > 1.02) return `${turns}grows to ${short(size)} times itself`;
  return x < 0 ? 'turns over' : 'stays';
}

// The effect of a step's transition on the state, at the selected head.
function transitionInWords(run) {
  if (!run.spectrum || run.spectrum.some(name => !tensorOf(run, name))) return '';
  const states = run.quantities.filter(q => q.role === 'state' && tensorOf(run, q.name));
  if (states.length && states.every(q => count(tensorOf(run, q.name)) === 0)) return 'This block carries no memory, only the tokens of its stretch.';
  const [re, im] = run.spectrum, q = quantity(run, re), h = index(run, 'h', {});
  const own = channels(run, q).filter(o => o.h === undefined || o.h === h);
  const real = own.map(o => value(run, re, sel.t, o)), name = im ? 'λ' : q.symbol === 'eigenvalue' ? 'The eigenvalue' : q.symbol;
  if (im) {
    const sizes = own.map((o, i) => Math.hypot(real[i], value(run, im, sel.t, o)));
    if (own.length <= 4) {
      return own.map((o, i) => {
        const angle = Math.abs(degrees(real[i], value(run, im, sel.t, o)));
        return `λ ${i + 1} turns by ${short(angle)}° and keeps ${short(sizes[i])}`;
      }).join('; ') + '.';
    }
    return `The magnitudes of λ go from ${short(Math.min(...sizes))} to ${short(Math.max(...sizes))}.`;
  }
  if (q.name === 'eigenvalue' && tensorOf(run, re).shape.at(-1) === 2) {
    const [along, across] = [0, 1].map(m => value(run, re, sel.t, { h, m }));
    const rest = Math.abs(across - 1) < 0.02 ? 'all else stays' : `all else ${fate(across)}`;
    return `The eigenvalue along k is ${short(along)}: what the state holds there ${fate(along)}, ${rest}.`;
  }
  if (own.length === 1) return `${name} is ${short(real[0])}: the state ${fate(real[0])}.`;
  const kinds = [
    ['turn over and grow', x => x < -1.02], ['turn over', x => x >= -1.02 && x <= -0.98], ['turn over and shrink', x => x > -0.98 && x < -0.05],
    ['erase', x => Math.abs(x) <= 0.05], ['shrink', x => x > 0.05 && x < 0.98], ['keep', x => x >= 0.98 && x <= 1.02], ['grow', x => x > 1.02],
  ];
  const counted = kinds.map(([what, is]) => [real.filter(is).length, what]).filter(([n]) => n > 0);
  return `Of ${own.length} factors ${q.symbol}, ${counted.map(([n, what]) => `${n} ${what}`).join(', ')} what they multiply.`;
}

// A line on what this step did and why, with a button that frames the cell of the largest change.
function inWords(run) {
  const line = el('p', { class: 'told', 'aria-live': 'polite' });
  return {
    figure: line,
    update() {
      const layer = Math.min(sel.layer, run.layers.length - 1), most = largestChange(run, layer, sel.t);
      const gates = run.quantities.filter(q => q.role === 'gate' && tensorOf(run, q.name)).slice(0, 3)
        .map(q => `${q.symbol} = ${short(value(run, q.name, sel.t))}`);
      const cell = most && el('button', { type: 'button', class: 'cell', onclick: () => { choose(most.over); line.querySelector('.cell')?.focus(); } }, cellName(most.q, most.over));
      const indices = most && [...most.q.axes].map(letter => LETTERS[letter]).join(', ');
      const read = readMost(run, layer, sel.t, index(run, 'h', {})).slice(0, 2);
      const reads = read.map(({ s, p }) => `token ${s + 1} (${D.tokens[s]}) with weight ${short(p)}`).join(', and ');
      line.replaceChildren(...[sel.layer > layer ? `Block ${layer + 1}, the last of this run. ` : '', `Token `, el('b', {}, D.tokens[sel.t]), ' at step ', String(sel.t + 1), ': ',
        gates.length ? `${gates.join(', ')}. ` : '', transitionInWords(run), transitionInWords(run) ? ' ' : '',
        reads ? `${size(run, 'h') ? `Head ${index(run, 'h', {}) + 1}` : 'It'} reads most of ${reads}. ` : '',
        ...(most && most.by > 1e-3 ? ['Most changes ', cell, ` (${indices}), from ${short(most.from)} to ${short(most.to)}.`] : most ? ['No state changes much.'] : [])]);
    },
  };
}
