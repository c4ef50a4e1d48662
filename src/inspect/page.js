// The page: a strip of tokens, and for each run its mixer at the selected step.
let parts = [];

// Select another step.
function go(t) {
  sel.t = Math.max(0, Math.min(T - 1, t));
  update();
}

// Select other elements: an index for some letters.
function choose(over) {
  Object.assign(sel, over);
  update();
}

function update() {
  for (const part of parts) part.update();
  // The address names the step, the block and the head, so that a link shows the same.
  const hash = `#step=${sel.t + 1}&block=${sel.layer + 1}&head=${sel.h + 1}`;
  // A frame of another page has no address of its own.
  if (location.protocol !== 'about:' && location.hash !== hash) history.replaceState(null, '', hash);
}

// The step, the block and the head that an address names: those of it that exist.
function address() {
  const named = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const at = (name, n) => { const x = Number(named[name]); return Number.isInteger(x) && x >= 1 && x <= n ? x - 1 : undefined; };
  const most = of => Math.max(...D.runs.map(of));
  const found = { t: at('step', T), layer: at('block', most(r => r.layers.length)), h: at('head', most(r => size(r, 'h') ?? 1)) };
  return Object.fromEntries(Object.entries(found).filter(([, x]) => x !== undefined));
}

// Go on by a step every 0.7 seconds, from the start if at the end; once more, stop.
let timer;
function play() {
  const stop = () => { clearInterval(timer); timer = undefined; update(); };
  if (timer) { stop(); return; }
  timer = setInterval(() => { if (sel.t + 1 < T) go(sel.t + 1); else stop(); }, 700);
  go(sel.t + 1 < T ? sel.t + 1 : 0);
}

// The tokens, their targets, and the predictions with their probability as a bar.
function strip() {
  const cell = (run, t) => {
    const said = run.said[t], target = D.targets[t];
    const verdict = target === null ? 'none' : said.class === target ? 'right' : 'wrong';
    return el('span', { class: `said ${verdict}` }, D.classes[said.class],
      el('i', { class: 'sure', style: `width:${(100 * said.p).toFixed(0)}%` }));
  };
  const tokens = D.tokens.map((token, t) => el('button', {
    type: 'button', class: 'token', 'data-t': t, onclick: () => go(t),
    'aria-label': `step ${t + 1}: token ${token}`,
  }, el('span', { class: 'at' }, String(t + 1)), el('span', { class: 'what' }, token),
  el('span', { class: 'target' }, D.targets[t] === null ? '·' : D.classes[D.targets[t]]), ...D.runs.map(run => cell(run, t))));
  const scroller = el('div', { class: 'tokens' }, ...tokens);
  const names = el('div', { class: 'names' }, el('span', { class: 'at' }, 'step'), el('span', { class: 'what' }, 'token'),
    el('span', {}, 'target'), ...D.runs.map((run, r) => el('span', {}, D.runs.length > 1 ? `run ${r + 1}` : 'says')));
  const now = el('p', { class: 'now', 'aria-live': 'polite' });
  const move = (by, text, label) => el('button', { type: 'button', 'aria-label': label, onclick: () => go(sel.t + by) }, text);
  const playing = el('button', { type: 'button', class: 'play', onclick: () => play() }, 'play');
  const slider = el('input', { type: 'range', min: 1, max: T, 'aria-label': 'step', oninput: () => go(slider.value - 1) });
  document.getElementById('strip').append(el('div', { class: 'strip' }, names, scroller),
    el('div', { class: 'moves' }, move(-1, '←', 'previous step'), move(1, '→', 'next step'), playing, slider, now));
  let last;
  return {
    update() {
      if (last !== undefined) tokens[last].removeAttribute('aria-current');
      slider.value = sel.t + 1;
      slider.setAttribute('aria-valuetext', `step ${sel.t + 1} of ${T}`);
      playing.textContent = timer ? 'stop' : 'play';
      const button = tokens[last = sel.t];
      button.setAttribute('aria-current', 'step');
      const left = button.offsetLeft - scroller.offsetLeft, right = left + button.offsetWidth;
      if (left < scroller.scrollLeft + 40 || right > scroller.scrollLeft + scroller.clientWidth - 40) {
        scroller.scrollLeft = left - scroller.clientWidth / 2;
      }
      const target = D.targets[sel.t];
      now.replaceChildren(`Step ${sel.t + 1} of ${T}: token `, el('b', {}, D.tokens[sel.t]),
        target === null ? ', no target.' : ', target ', target === null ? '' : el('b', {}, D.classes[target]),
        ...D.runs.flatMap(run => {
          const { class: c, p } = run.said[sel.t];
          return [D.runs.length > 1 ? `; ${run.name} says ` : target === null ? ' It says ' : '; it says ', el('b', {}, D.classes[c]), ` (${p === null ? 'NaN' : p.toFixed(3)})`];
        }));
    },
  };
}

// The equations with this step's numbers.
function equations(run) {
  const where = el('p', { class: 'soft' });
  const list = el('dl', { class: 'equations' });
  const letters = [...new Set(run.equations.flatMap(([, template]) => [...template.matchAll(/\{([^}]*)\}/g)]
    .flatMap(m => run.quantities.filter(q => m[1].replace(/^sum:\w /, '').split(/ [*+] /).some(w => w.replace(/\[.*\]/, '').replace(/(@s|-|;.*)$/, '') === q.name))
      .flatMap(q => q.name === 'eigenvalue' ? ['h'] : [...q.axes]))))].filter(letter => letter in LETTERS)
    .sort((a, b) => Object.keys(LETTERS).indexOf(a) - Object.keys(LETTERS).indexOf(b));
  // A number; in brackets if it is negative and follows an operator.
  const number = (text, before) => {
    const x = evaluate(run, text), shown = x < 0 && /[·−+]\s*$/.test(before) ? `(${short(x)})` : short(x);
    return el('span', { class: 'number', 'data-expression': text, 'data-value': x }, shown);
  };
  // A sum's largest terms, in their order.
  const terms = text => {
    const [, letter, product] = text.match(/^sum:(\w) (.*)$/), n = letter === 's' ? sel.t + 1 : size(run, letter);
    const factors = x => product.split(' * ').map(f => `${f};${letter}=${x}`);
    const weight = x => Math.abs(factors(x).reduce((p, f) => p * evaluate(run, f), 1));
    const all = Array.from({ length: n }, (_, x) => [weight(x), x]).sort((a, b) => b[0] - a[0]);
    const shown = all.slice(0, n <= 4 ? n : 3).map(a => a[1]).sort((a, b) => a - b);
    const rest = n > shown.length ? ` + … (${n - shown.length} smaller)` : '';
    return [...shown.flatMap((x, i) => factors(x).flatMap((f, j) => {
      const before = j ? ' · ' : i ? ' + ' : '';
      return [before, number(f, before)];
    })), rest];
  };
  // An equation's numbers; its sums are below it, or in it where a sum is the whole right side.
  const fill = template => {
    const all = template.split(/(\{[^}]*\})/), whole = all.length === 5 && all[2] === ' = ' && all[4] === '';
    const sum = piece => piece.startsWith('{sum:');
    const line = all.flatMap((piece, i) => i % 2 === 0 ? piece
      : whole && sum(piece) ? terms(piece.slice(1, -1)) : number(piece.slice(1, -1), all[i - 1]));
    const below = whole ? [] : all.filter(sum).map(piece =>
      el('span', { class: 'sum' }, number(piece.slice(1, -1), ''), ' = ', ...terms(piece.slice(1, -1))));
    return [...line, ...below];
  };
  return {
    figure: el('section', { class: 'card wide' }, el('h3', {}, 'This step, in numbers'), where, list,
      run.symbols.length ? el('p', { class: 'soft symbols' }, `${run.symbols.join('; ')}.`) : undefined),
    update() {
      const cells = letters.map(l => `${LETTERS[l]} ${index(run, l, {}) + 1} of ${l === 's' ? sel.t + 1 : size(run, l)}`);
      where.textContent = cells.length ? `At ${cells.join(', ')}; click a cell in a figure for another.` : '';
      list.replaceChildren(...run.equations.flatMap(([, template, mathml]) =>
        [el('dt', {}, parsed(mathml)), el('dd', {}, ...fill(template))]));
    },
  };
}

// The letters of a quantity that have a figure for each of their indices: heads, factors, and the memories of matrices.
const apart = q => ['p', 'h', 'm'].filter(l => q.axes.includes(l) && (l !== 'm' || q.axes.includes('ij')));

// The other letters and their sizes; the longer of two is drawn from left to right.
function plane(run, q) {
  const rest = [...q.axes].filter(l => !apart(q).includes(l));
  const [a, b] = rest.length === 2 ? rest : [undefined, rest[0]];
  return a && own(run, q, a) > 2 * own(run, q, b) ? [b, a] : [a, b];
}

// Every head and factor of a quantity: an index for each of their letters.
function pages(run, q) {
  return apart(q).reduce((all, l) => all.flatMap(o => Array.from({ length: own(run, q, l) }, (_, x) => ({ ...o, [l]: x }))), [{}]);
}
// The figures of a quantity, a row of heads for each factor of a product.
function byFactor(run, q) {
  const all = pages(run, q), rows = [...new Set(all.map(o => o.p))];
  return rows.map(p => row(all.filter(o => o.p === p).map(o => map(run, q, o))));
}
const pageName = over => Object.entries(over).map(([l, x]) => `${LETTERS[l]} ${x + 1}`).join(', ');

// A heat map of a quantity at this step, for one head; with `change`, its change by this step.
function map(run, q, over, change) {
  const [down, across] = plane(run, q);
  // By strides, because this runs for every cell at every step.
  const at = () => {
    const tensor = tensorOf(run, q.name), all = numbers(tensor), by = strides(tensor, q.axes);
    const [down_by, across_by] = [by[down] ?? 0, by[across] ?? 0];
    const now = Object.entries(over).reduce((o, [l, x]) => o + by[l] * x, sel.t * tensor.width);
    return (r, c) => {
      const cell = now + r * down_by + c * across_by;
      return all[cell] - (change && sel.t > 0 ? all[cell - tensor.width] : 0);
    };
  };
  const cell = (r, c) => ({ ...over, ...(down && { [down]: r }), ...(across && { [across]: c }) });
  const named = (r, c) => (change ? 'Δ' : '') + cellName(q, cell(r, c));
  const on = () => Object.entries(over).every(([l, x]) => here(run, q, l) === x);
  return heatMap({
    label: `${change ? 'Δ' : ''}${q.symbol}${Object.keys(over).length ? ', ' + pageName(over) : ''}`, quantityName: q.name,
    of: () => ({ rows: down ? own(run, q, down) : 1, columns: across ? own(run, q, across) : 1, at: at(), most: reach(tensorOf(run, q.name)) }),
    pick: (r, c) => choose(cell(r, c)),
    marked: () => on() ? [down ? here(run, q, down) : 0, across ? here(run, q, across) : 0] : null,
    say: named, cell: across && own(run, q, across) <= 16 ? Math.min(18, 230 / own(run, q, across)) : 18,
  });
}

// Every channel of a quantity, in the order of its elements: an index for each letter.
const channels = (run, q) => [...q.axes].reduce((all, l, axis) => all.flatMap(o => Array.from({ length: tensorOf(run, q.name).shape[axis] }, (_, x) => ({ ...o, [l]: x }))), [{}]);
// The element of a channel at a step.
function flat(run, q, t, channel) {
  const tensor = tensorOf(run, q.name);
  return numbers(tensor)[t * tensor.width + channel];
}

// A quantity over all steps: one row per channel.
function mapOverTime(run, q) {
  const rows = channels(run, q);
  return heatMap({
    label: `${q.symbol} over time`, overTime: true, quantityName: q.name,
    of: () => ({ key: `${sel.layer}`, rows: rows.length, columns: T, at: (r, t) => flat(run, q, t, r), most: reach(tensorOf(run, q.name)) }),
    pick: (r, t) => { Object.assign(sel, rows[r]); go(t); },
    marked: () => [rows.findIndex(o => Object.entries(o).every(([l, x]) => here(run, q, l) === x)), sel.t],
    say: (r, t) => `${cellName(q, rows[r])} at step ${t + 1}`,
  });
}

// Few channels as lines, many as a heat map.
function overTime(run, q, { title = q.symbol, name } = {}) {
  const rows = channels(run, q);
  if (rows.length > 8) return mapOverTime(run, q);
  return traces({
    label: `${title} over time`, quantityName: q.name,
    lines: () => rows.map((o, i) => ({ label: name ? name(o) : rows.length === 1 ? '' : Object.entries(o).map(([l, x]) => `${LETTERS[l]} ${x + 1}`).join(', '), at: t => flat(run, q, t, i) })),
    range: () => bounds(run, q.name),
  });
}

// An axis for a quantity, the same for both runs: from 0 to 1 or −1 to 1 if all its elements lie there.
function bounds(run, name) {
  let lo = Infinity, hi = -Infinity;
  for (const r of D.runs.filter(r => r.mixer === run.mixer && tensorOf(r, name))) {
    for (const x of numbers(tensorOf(r, name))) { if (x < lo && x > -Infinity) lo = x; if (x > hi && x < Infinity) hi = x; }
  }
  if (lo >= -1e-6 && hi <= 1 + 1e-6) return [0, 1];
  if (lo >= -1 - 1e-6 && hi <= 1 + 1e-6) return [-1, 1];
  if (lo >= 0 && hi <= 2) return [0, 2];
  return [Math.min(0, lo), Math.max(hi, lo + 1e-6, 0)];
}

// What quantities are; nothing of one that is not explained, as in a mixer of a reader's own.
const explained = quantities => quantities.filter(q => q.about).map(q => `${q.symbol}: ${q.about}.`).join(' ');

function card(title, about, figures, wide) {
  const node = el('section', { class: wide ? 'card wide' : 'card' }, el('h3', {}, title),
    about ? el('p', { class: 'soft' }, about) : undefined, el('div', { class: 'figures' }, ...figures.map(f => f.figure)));
  return { figure: node, update: () => figures.forEach(f => f.update()) };
}

// Figures beside one another.
function row(figures) {
  return { figure: el('div', { class: 'row' }, ...figures.map(f => f.figure)), update: () => figures.forEach(f => f.update()) };
}

// The eigenvalues of the transition: now, and over time.
function spectrum(run) {
  if (!run.spectrum) return run.spectrum_about ? card('Eigenvalues of the transition', run.spectrum_about, []) : null;
  const [re, im] = run.spectrum, q = quantity(run, re);
  const all = channels(run, q);
  const computed = q.name === 'eigenvalue', two = computed && tensorOf(run, re).shape.at(-1) === 2;
  const among = x => im ? `λ ${x + 1}` : two ? ['along k', 'orthogonal to k'][x] : computed ? '' : `${LETTERS.m} ${x + 1}`;
  const label = o => Object.entries(o).map(([l, x]) => l === 'm' ? among(x) : `${LETTERS[l]} ${x + 1}`).filter(x => x).join(', ') || 'λ';
  // The colours of the lines over time, where there are few enough for lines.
  const style = (o, i) => all.length <= 8 ? i : o.h ?? 0;
  const states = im && quantity(run, 'Re h') && quantity(run, 'Im h');
  if (im) {
    const size = o => Math.hypot(value(run, 'Re h', sel.t, o), value(run, 'Im h', sel.t, o));
    const most = () => Math.hypot(reach(tensorOf(run, 'Re h')), reach(tensorOf(run, 'Im h')));
    const points = () => all.map((o, i) => ({
      re: value(run, re, sel.t, o), im: value(run, im, sel.t, o), label: states ? `λ ${i + 1}` : label(o), index: i, style: states ? 0 : style(o, i),
      r: states ? 3 + 12 * Math.sqrt(size(o) / (most() || 1)) : 6, marked: states ? i === index(run, 'n', {}) : false,
    }));
    const figures = [disc({ label: states ? 'λ on the unit disc' : 'on the unit disc', points, pick: states ? i => choose(all[i]) : null })];
    if (!states) figures.push(overTime(run, q, { title: 'real parts', name: label }));
    const dots = states && all.length <= 64 ? ' Dots are as large as |h|.' : '';
    return card('Eigenvalues of the transition', run.spectrum_about + dots, figures);
  }
  const lane = o => (o.h ?? 0) % 3;
  const now = numberLine({ label: 'at this step', points: () => all.map((o, i) => ({ x: flat(run, q, sel.t, i), label: label(o), style: style(o, i), lane: lane(o) })) });
  if (q.role === 'gate') return card('Eigenvalues of the transition', `${run.spectrum_about} Over time it is among the gates.`, [now]);
  return card('Eigenvalues of the transition', run.spectrum_about, [now, overTime(run, q, { title: q.symbol === 'eigenvalue' ? 'eigenvalues' : q.symbol, name: label })]);
}

// Everything about one run.
function runView(run, r) {
  const of = role => run.quantities.filter(q => q.role === role && tensorOf(run, q.name));
  const told = inWords(run), cards = [];
  if (run.equations.length) cards.push(equations(run));
  const matrices = of('state').filter(q => plane(run, q)[0]);
  // A block may have nothing of a state.
  const where = (q, { figure, update }) => ({ figure, update() {
    figure.hidden = count(tensorOf(run, q.name)) === 0;
    if (!figure.hidden) update();
  } });
  for (const q of matrices) {
    cards.push(where(q, card(`State ${q.symbol}`, `${q.about ? `${q.about}. ` : ''}Δ${q.symbol} is what this step has changed.`,
      pages(run, q).map(o => row([map(run, q, o), map(run, q, o, true)])))));
  }
  const vectors = of('state').filter(q => !plane(run, q)[0] && q.name !== 'w');
  if (vectors.length) {
    cards.push(card('State', explained(vectors), vectors.flatMap(q => [...(plane(run, q)[1] ? [row(pages(run, q).map(o => map(run, q, o)))] : []), overTime(run, q)])));
  }
  for (const q of of('attention')) cards.push(attention(run, q));
  const vector = of('vector').filter(q => q.name !== 'S_before' && !(run.spectrum ?? []).includes(q.name) && !q.name.includes('eigenvalue'));
  if (vector.length) {
    cards.push(card('Written and read at this step', explained(vector), vector.flatMap(q => byFactor(run, q))));
  }
  const gates = of('gate');
  if (gates.length) cards.push(card('Gates over time', explained(gates), gates.map(q => overTime(run, q))));
  const eigen = spectrum(run), states = of('state');
  // A block that has nothing of a state has no transition.
  const none = () => run.spectrum && states.length > 0 && states.every(q => count(tensorOf(run, q.name)) === 0);
  if (eigen) cards.push({ figure: eigen.figure, update() {
    eigen.figure.hidden = Boolean(none());
    if (!eigen.figure.hidden) eigen.update();
  } });
  const file = el('details', {}, el('summary', {}, `The equations, as in src/models/${run.mixer}.rs`), el('pre', { tabindex: 0 }, run.source));
  const node = el('article', { class: 'run', 'data-run': r }, el('h2', {}, D.runs.length > 1 ? `Run ${r + 1}: ${run.name}` : run.name),
    el('p', {}, run.about), el('p', { class: 'soft' }, `${run.sizes}.`), plan(run), run.source ? file : undefined, told.figure,
    el('div', { class: 'cards' }, ...cards.map(c => c.figure)));
  return { figure: node, update: () => [told, ...cards].forEach(c => c.update()) };
}

// The parts of the model, from tokens to logits: each says what it is, and a mixer's shows its block.
function plan(run) {
  const about = el('p', { class: 'soft', 'aria-live': 'polite' });
  const buttons = run.parts.map(part => el('button', { type: 'button', class: part.block === null ? 'part' : 'part mixer', onclick: () => {
    buttons.forEach(b => b.setAttribute('aria-pressed', String(b === buttons[run.parts.indexOf(part)])));
    about.textContent = part.about;
    if (part.block !== null) choose({ layer: part.block });
  } }, part.name));
  return el('div', { class: 'plan' }, el('div', { class: 'parts', role: 'group', 'aria-label': 'the parts of the model' },
    ...buttons.flatMap((b, i) => i ? [el('span', { 'aria-hidden': 'true' }, '→'), b] : [b])), about);
}

// The row of attention at this step, and all rows.
function attention(run, q) {
  const at = o => {
    const tensor = tensorOf(run, q.name), all = numbers(tensor);
    return (t, s) => s > t ? NaN : all[t * tensor.width + (o.h ?? 0) * T + s];
  };
  const now = o => heatMap({
    label: [q.symbol, pageName(o)].filter(x => x).join(', '), quantityName: q.name, overTime: false, cell: 18,
    of: () => ({ rows: 1, columns: T, most: 1, at: (_, s) => at(o)(sel.t, s), later: (_, s) => s > sel.t }),
    pick: (_, s) => choose({ ...o, s }), marked: () => o.h === undefined || index(run, 'h', {}) === o.h ? [0, index(run, 's', {})] : null,
    say: (_, s) => `to token ${s + 1} (${D.tokens[s]})`, labels: T <= 40 ? D.tokens : [],
  });
  const all = o => heatMap({
    label: ['all rows', pageName(o)].filter(x => x).join(', '), quantityName: q.name,
    cell: T <= 24 ? 14 : Math.max(1, 260 / T), labels: T <= 24 ? D.tokens : [],
    of: () => ({ key: `${sel.layer}`, rows: T, columns: T, most: 1, at: at(o), later: (t, s) => s > t }),
    pick: (t, s) => { Object.assign(sel, o, { s }); go(t); }, marked: () => [sel.t, index(run, 's', {})],
    say: (t, s) => `step ${t + 1} (${D.tokens[t]}) to token ${s + 1} (${D.tokens[s]})`,
  });
  const heads = pages(run, q);
  return card('Attention', `${q.about}. Rows are steps, columns the tokens they look at.`, [...heads.map(now), row(heads.map(all))]);
}

// The selected block.
function layers() {
  const n = Math.max(...D.runs.map(r => r.layers.length));
  const buttons = Array.from({ length: n }, (_, l) => el('button', { type: 'button', onclick: () => choose({ layer: l }) }, `block ${l + 1}`));
  if (n > 1) document.querySelector('.moves').append(el('span', { class: 'layers' }, ...buttons));
  return { update: () => buttons.forEach((b, l) => b.setAttribute('aria-pressed', String(l === sel.layer))) };
}

// The legend of colours.
function legend() {
  const canvas = el('canvas', { class: 'legend', role: 'img', 'aria-label': 'from blue over nothing to orange' });
  document.getElementById('task').after(el('p', { class: 'soft' }, 'Colours: below zero ', canvas, ' above; full at what ± says beside the name of a figure.'));
  return { update: () => paint(canvas, 1, 65, (_, c) => c / 32 - 1, 1) };
}

function build() {
  readColours();
  document.querySelector('h1').textContent = D.runs.map(r => r.title).filter((x, i, all) => all.indexOf(x) === i).join(' and ') + `, step by step`;
  document.getElementById('task').textContent = `${D.task.title}: ${D.task.legend}${/[?.]$/.test(D.task.legend) ? '' : '.'}`;
  const main = document.getElementById('runs');
  const views = D.runs.map(runView);
  main.replaceChildren(...views.map(v => v.figure));
  main.classList.toggle('two', D.runs.length > 1);
  parts = [legend(), strip(), layers(), ...views];
  document.getElementById('graphs').replaceChildren(...D.graphs.map(tape));
  const named = address(), telling = 't' in named ? {} : tellingStep();
  Object.assign(sel, telling.over, { t: telling.t ?? 0 }, named);
  update();
}

document.addEventListener('keydown', e => {
  if (e.altKey || e.ctrlKey || e.metaKey) return;
  if (e.target.closest?.('input, pre, dt')) return; // the slider and what scrolls have keys of their own
  if (e.key === ' ' && !e.target.closest?.('button, summary')) { e.preventDefault(); play(); return; }
  const to = { ArrowRight: sel.t + 1, ArrowLeft: sel.t - 1, Home: 0, End: T - 1 }[e.key];
  if (to !== undefined) { e.preventDefault(); go(to); }
});
window.addEventListener('hashchange', () => choose(address())); // which also rewrites what does not exist
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  readColours();
  document.querySelectorAll('[data-key]').forEach(box => delete box.dataset.key);
  update();
});
build();
window.inspector = { data: D, sel, go, choose, value, evaluate, tensorOf, numbers };
