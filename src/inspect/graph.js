// The tape of one training step: one row per op, in the order of execution, with an arc from each value's
// writer to its reader.
function tape(graph) {
  const ROW = 22, LEFT = 96;
  const most = Math.max(1e-9, ...graph.nodes.map(n => n.forward_us + n.backward_us));
  const widest = Math.max(1, ...graph.nodes.map(n => n.bytes));
  const total = graph.nodes.reduce((s, n) => s + n.forward_us + n.backward_us, 0);
  const bytes = graph.nodes.reduce((s, n) => s + n.bytes, 0);
  const rows = [], at = [];
  let scope = null, y = 0;
  const size = b => b < 1000 ? `${b} B` : b < 1e6 ? `${(b / 1e3).toFixed(1)} kB` : `${(b / 1e6).toFixed(1)} MB`;
  const own = name => name.replace(/^blocks\.\d+\.(mixer|mlp)\./, '');
  graph.nodes.forEach((node, i) => {
    if (node.scope !== scope) {
      scope = node.scope;
      const inside = graph.nodes.filter(n => n.scope === scope);
      const us = inside.reduce((s, n) => s + n.forward_us + n.backward_us, 0);
      rows.push(el('tr', { class: 'scope' }, el('th', { colspan: 3 }, `${scope || 'loss'}  `,
        el('span', { class: 'soft' }, `${inside.length} ops, ${size(inside.reduce((s, n) => s + n.bytes, 0))}, ${us.toFixed(0)} µs`)), el('th', { class: 'shape' })));
      y += ROW;
    }
    at.push(y + ROW / 2);
    y += ROW;
    const reads = node.inputs.filter(e => e.name).map(e => own(e.name)).join(', ');
    const share = x => `width:${(100 * x / most).toFixed(1)}%`;
    rows.push(el('tr', { class: node.op === 'reshape' ? 'reshape' : '', 'data-node': i },
      el('td', {}, node.op, reads ? el('span', { class: 'soft' }, ` ${reads}`) : ''),
      el('td', { class: 'shape' }, node.outputs.join(' ')),
      el('td', { class: 'number' }, node.bytes ? size(node.bytes) : '', el('i', { class: 'bar bytes', style: `width:${(100 * node.bytes / widest).toFixed(1)}%` })),
      el('td', { class: 'number' }, node.op === 'reshape' ? '' : (node.forward_us + node.backward_us).toFixed(1),
        el('span', { class: 'bars' }, el('i', { class: 'bar forward', style: share(node.forward_us) }), el('i', { class: 'bar backward', style: share(node.backward_us) })))));
  });
  const arcs = [];
  graph.nodes.forEach((node, i) => node.inputs.forEach(edge => {
    if (edge.node === null || edge.node === undefined) return;
    const [a, b] = [at[edge.node], at[i]];
    // The longer the arc, the further to the left; neighbours are joined by a short line.
    const out = Math.min(1.3 * LEFT, 4 + 3.6 * Math.sqrt(b - a));
    arcs.push(el('svg:path', { class: 'arc', 'data-from': edge.node, 'data-to': i,
      d: `M${LEFT - 2} ${a}C${LEFT - out} ${a} ${LEFT - out} ${b} ${LEFT - 2} ${b}` }));
  }));
  const svg = el('svg:svg', { class: 'arcs', width: LEFT, height: y, 'aria-hidden': 'true' }, ...arcs);
  const body = el('tbody', {}, ...rows);
  body.addEventListener('pointerover', e => {
    const node = e.target.closest('tr')?.dataset.node;
    arcs.forEach(a => a.classList.toggle('on', node !== undefined && (a.dataset.from === node || a.dataset.to === node)));
  });
  return el('section', { class: 'tape' }, el('h2', {}, `The tape of one training step: ${graph.name}`),
    el('p', { class: 'soft' }, `${graph.batch[0]} sequences of ${graph.batch[1]} tokens in the form ${graph.form}: ` +
      `${graph.nodes.length} operations, ${size(bytes)}, ${total.toFixed(0)} µs forward and backward. Each row is an operation, in the ` +
      'order in which they ran; the backward pass goes up again. Arcs lead from the writer of a value to its readers. ' +
      'Where no shape is said, the value is one number.'),
    el('div', { class: 'rows' }, svg, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'op, parameters it reads'),
      el('th', { class: 'shape' }, 'writes'), el('th', { class: 'number' }, 'bytes'),
      el('th', { class: 'number' }, 'µs ', el('i', { class: 'key forward' }), 'forward ', el('i', { class: 'key backward' }), 'backward'))), body)));
}
