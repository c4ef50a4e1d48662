// The colours of the page, light or dark.
let ink;
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const rgb = name => style.getPropertyValue(name).trim().replace(/^#(.)(.)(.)$/, '#$1$1$2$2$3$3')
    .match(/\w\w/g).map(x => parseInt(x, 16));
  ink = { zero: rgb('--zero'), more: rgb('--c1'), less: rgb('--c0') };
}

// Fill a canvas of rows × columns, one pixel per element: blue below zero, orange above, the background at zero; the root
// spreads small numbers. Missing elements (NaN) are clear.
function paint(canvas, rows, columns, at, most) {
  if (canvas.width !== columns || canvas.height !== rows) { canvas.width = columns; canvas.height = rows; }
  const context = canvas.getContext('2d'), image = context.createImageData(columns, rows);
  for (let r = 0, o = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++, o += 4) {
      const x = at(r, c);
      if (Number.isNaN(x)) continue;
      const part = most > 0 ? Math.sqrt(Math.min(1, Math.abs(x) / most)) : 0, end = x < 0 ? ink.less : ink.more;
      for (let i = 0; i < 3; i++) image.data[o + i] = Math.round(ink.zero[i] + (end[i] - ink.zero[i]) * part);
      image.data[o + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}
