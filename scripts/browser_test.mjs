// The inspector's pages in a browser; run by browser_test.sh. The numbers on a page are worked out again here, from the
// files that --json wrote, by code of its own.
import { chromium } from 'playwright-core';
import { readFileSync, readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';

const out = resolve(process.argv[2]);
const only = process.argv.slice(3);
// Milliseconds in which a page opens; more for a machine that is busy with other things.
const LIMIT = Number(process.env.OPEN_MS ?? 1000);

// name -> { shape, data } of a safetensors file.
function tensors(path) {
  const file = readFileSync(path), n = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, 8 + n));
  return Object.fromEntries(Object.entries(header).filter(([k]) => k !== '__metadata__').map(([name, { shape, data_offsets: [a, b] }]) =>
    [name, { shape, data: new Float32Array(file.buffer.slice(file.byteOffset + 8 + n + a, file.byteOffset + 8 + n + b)) }]));
}

// A factor of an equation: "S-", "v@s" or "beta", at these indices.
function factor(file, run, layer, text, t, sel) {
  const [, read, letter, as] = text.match(/^(.+)\[(\w)=(\w)\]$/) ?? [];
  if (read) return factor(file, run, layer, read, t, { ...sel, [letter]: sel[as] });
  const name = text.replace(/(@s|-)$/, ''), at = text.endsWith('-') ? t - 1 : text.endsWith('@s') ? sel.s : t;
  if (at < 0) return 0;
  const { shape, data } = file[`run${run + 1}.blocks.${layer}.mixer.${name}`];
  // A weight has no axis of steps.
  const axes = sel.axes[name], steps = shape.length - axes.length;
  return data[[...axes].reduce((o, l, i) => o * shape[i + steps] + sel[l] % shape[i + steps], steps ? at : 0)];
}

// The value of an expression of an equation.
function worth(file, run, layer, expression, t, sel) {
  const [body, ...fixed] = expression.split(';');
  const here = { ...sel, ...Object.fromEntries(fixed.map(f => [f[0], Number(f.slice(2))])) };
  const size = letter => {
    const name = Object.keys(sel.axes).find(n => sel.axes[n].includes(letter));
    if (letter === 's') return t + 1;
    const { shape } = file[`run${run + 1}.blocks.${layer}.mixer.${name}`];
    return shape[shape.length - sel.axes[name].length + sel.axes[name].indexOf(letter)];
  };
  if (body.startsWith('size:')) return size(body[5]);
  const product = (text, at) => text.split(' * ').map(x => factor(file, run, layer, x, t, at)).reduce((a, b) => a * b, 1);
  if (body.startsWith('sum:')) {
    let sum = 0;
    for (let x = 0; x < size(body[4]); x++) sum += product(body.slice(6), { ...here, [body[4]]: x });
    return sum;
  }
  return body.split(' + ').map(term => product(term, here)).reduce((a, b) => a + b, 0);
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run'],
});
let checked = 0;

async function open(name, options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const bad = [];
  page.on('pageerror', e => bad.push(String(e)));
  page.on('console', m => m.type() === 'error' && bad.push(m.text()));
  page.on('request', r => r.url().startsWith('file:') || r.url().startsWith('data:') || bad.push(`asks the network for ${r.url()}`));
  await page.goto(pathToFileURL(join(out, `${name}.html`)).href);
  await page.waitForFunction(() => window.inspector && document.querySelector('.token[aria-current]'));
  // By the browser's own clock: read, decoded and drawn.
  const ms = await page.evaluate(() => Math.round(performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd));
  return { context, page, bad, ms };
}

// Every number of every equation on the page, worked out anew.
async function compare(page, file, json, what) {
  const shown = await page.evaluate(() => [...document.querySelectorAll('.run')].map(run => ({
    run: Number(run.dataset.run), layer: inspector.sel.layer, t: inspector.sel.t, sel: { ...inspector.sel },
    numbers: [...run.querySelectorAll('.equations .number')].map(n => [n.dataset.expression, Number(n.dataset.value), n.textContent]),
  })));
  for (const { run, layer, t, sel, numbers } of shown) {
    const axes = Object.fromEntries(json.runs[run].quantities.map(q => [q.name, q.axes]));
    const at = { ...sel, axes };
    for (const letter of 'hijdnpsm') {
      const name = Object.keys(axes).find(n => axes[n].includes(letter));
      const tensor = name && file[`run${run + 1}.blocks.${layer}.mixer.${name}`];
      if (tensor) at[letter] = Math.min(at[letter], letter === 's' ? t : tensor.shape[1 + axes[name].indexOf(letter)] - 1);
    }
    for (const [expression, value, text] of numbers) {
      const expected = worth(file, run, layer, expression, t, at);
      assert.ok(Math.abs(value - expected) <= 1e-5 + 2e-3 * Math.abs(expected), `${what}, step ${t + 1}: {${expression}} is ${value} on the page, ${expected} in the file`);
      const read = Number(text.replace(/[()]/g, '').replaceAll('−', '-'));
      assert.ok(Math.abs(read - expected) <= 1e-5 + 7e-3 * Math.abs(expected), `${what}: '${text}' is written for ${expected}`);
      checked++;
    }
  }
}

for (const name of readdirSync(out).filter(f => f.endsWith('.html')).map(f => f.slice(0, -5)).filter(n => !only.length || only.includes(n))) {
  const file = tensors(join(out, `${name}.safetensors`)), json = JSON.parse(readFileSync(join(out, `${name}.json`)));
  const T = json.tokens.length;
  const size = readFileSync(join(out, `${name}.html`)).length;
  assert.ok(size < 5e6, `${name}: ${size} bytes`);
  const desk = { viewport: { width: 1200, height: 900 }, colorScheme: 'light' };
  // Other work on the machine may be in the way once: the best of five openings counts.
  let opened = await open(name, desk), ms = opened.ms;
  for (let again = 0; ms >= LIMIT && again < 4; again++) {
    await opened.context.close();
    opened = await open(name, desk);
    ms = Math.min(ms, opened.ms);
  }
  const { context, page, bad } = opened;
  assert.ok(ms < LIMIT, `${name}: opened after ${ms} ms`);
  const step = () => page.evaluate(() => inspector.sel.t);
  const current = () => page.locator('.token[aria-current]').getAttribute('data-t');

  assert.equal(await page.locator('.token').count(), T);
  // It opens where a state changes most, if there is a step with something before it.
  const opens = await step();
  assert.ok(T < 2 || opens > 0, `${name}: opens at step ${opens + 1}`);
  await compare(page, file, json, `${name}, as it opens`);
  assert.match(await page.locator('.told').first().innerText(), /^Token .+ at step \d+: .+/, name);
  // The cell of the largest change has the same name below its figure.
  const cell = page.locator('.told .cell').first();
  if (await cell.count()) {
    const named = await cell.innerText(), symbol = named.slice(0, named.indexOf('[') + 1);
    await cell.click();
    const below = (await page.locator('.run').first().locator('.readout').allInnerTexts()).filter(text => text.startsWith(symbol));
    assert.ok(!below.length || below.some(text => text.startsWith(named)), `${name}: ${named} is called ${below}`);
  }
  // The address leads back to the step; play and stop move it, and so does the slider.
  const address = await page.evaluate(() => location.hash);
  assert.ok(address.startsWith(`#step=${opens + 1}&`), `${name}: ${address}`);
  await page.evaluate(() => { location.hash = '#step=1&block=1&head=1'; });
  await page.waitForFunction(() => inspector.sel.t === 0);
  if (T > 1) {
    await page.keyboard.press(' ');
    assert.equal(await step(), 1, 'the space bar plays');
    await page.keyboard.press(' ');
    assert.equal(await page.locator('.play').innerText(), 'play');
    await page.locator('.moves input').fill(String(T));
    assert.equal(await step(), T - 1, 'the slider');
  }
  // Every part of the model says what it is.
  for (const part of await page.locator('.plan').first().locator('button').all()) {
    await part.click();
    assert.ok((await page.locator('.plan p').first().innerText()).length > 20, name);
  }
  await page.locator('h1').click();
  await page.evaluate(() => inspector.choose({ layer: 0 }));
  await page.keyboard.press('Home');
  for (let t = 0; t < Math.min(T, 6); t++) {
    assert.equal(await step(), t);
    assert.equal(await current(), String(t));
    await compare(page, file, json, name);
    await page.keyboard.press('ArrowRight');
  }
  await page.keyboard.press('ArrowLeft');
  assert.equal(await step(), Math.min(T, 6) - (T >= 7 ? 1 : 2));
  await page.keyboard.press('End');
  assert.equal(await step(), T - 1);
  await page.keyboard.press('ArrowRight');
  assert.equal(await step(), T - 1, 'there is nothing after the end');
  await compare(page, file, json, name);
  await page.keyboard.press('Home');
  assert.equal(await step(), 0);
  const middle = Math.floor(T / 2);
  await page.locator('.token').nth(middle).click();
  assert.equal(await step(), middle);
  // A click on a heat map picks its cell.
  const map = page.locator('.map:not(.wide) canvas').last();
  const area = await map.boundingBox();
  await map.click({ position: { x: area.width - 2, y: area.height - 2 } });
  await compare(page, file, json, `${name}, another cell`);
  // So do the arrows on it, and not the step's.
  const focused = await page.evaluate(() => document.activeElement.tagName);
  assert.notEqual(focused, 'CANVAS', `${name}: a click takes the arrows from the steps`);
  const framed = () => page.evaluate(() => JSON.stringify(inspector.sel)), [before, stays] = [await framed(), await step()];
  await map.focus();
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('ArrowLeft');
  assert.equal(await step(), stays, `${name}: arrows on a map`);
  if (area.width > 40 || area.height > 40) assert.notEqual(await framed(), before, `${name}: arrows on a map`);
  await compare(page, file, json, `${name}, another cell by keyboard`);
  await page.evaluate(() => document.activeElement.blur());
  // A map has as many cells as its quantity has numbers for a head.
  const cells = await page.evaluate(() => [...document.querySelectorAll('.run')].flatMap((run, r) => [...run.querySelectorAll('figure[data-quantity] .map:not(.wide) canvas')].map(canvas => {
    const name = canvas.closest('figure').dataset.quantity;
    return { name, cells: canvas.width * canvas.height, numbers: inspector.tensorOf(inspector.data.runs[r], name).shape.reduce((a, b) => a * b, 1) };
  })));
  for (const { name: quantity, cells: n, numbers } of cells) {
    if (json.runs.every(run => run.quantities.find(q => q.name === quantity)?.role !== 'attention')) assert.equal(numbers % n, 0, `${name}: ${n} cells of ${quantity}'s ${numbers}`);
  }
  // A click over time goes there.
  const times = page.locator('.wide canvas:visible, .wide svg:visible');
  if (await times.count()) {
    const box = await times.first().boundingBox();
    await times.first().click({ position: { x: box.width * .999 - 1, y: box.height / 2 } });
    assert.equal(await step(), T - 1, `${name}: a click at the end of a trace`);
  }
  const layers = page.locator('.layers button');
  if (await layers.count()) {
    await layers.last().click();
    assert.equal(await page.evaluate(() => inspector.sel.layer), await layers.count() - 1);
    await compare(page, file, json, `${name}, the last block`);
    // Every state that the block has is in a figure.
    const bare = await page.evaluate(() => [...document.querySelectorAll('.run')].flatMap((run, r) => inspector.data.runs[r].quantities
      .filter(q => q.role === 'state' && q.name !== 'w' && inspector.tensorOf(inspector.data.runs[r], q.name)?.shape.every(n => n > 0) && !run.querySelector(`figure[data-quantity="${q.name}"]`))
      .map(q => q.name)));
    assert.deepEqual(bare, [], `${name}, the last block`);
    await layers.first().click();
  }
  // The strip says what the logits say.
  for (const [r, run] of json.runs.entries()) {
    const { shape, data } = file[run.logits];
    for (let t = 0; t < T; t++) {
      const row = [...data.subarray(t * shape[1], (t + 1) * shape[1])], top = Math.max(...row);
      const p = 1 / row.reduce((s, x) => s + Math.exp(x - top), 0);
      assert.equal(run.said[t].class, row.indexOf(top));
      assert.ok(Math.abs(run.said[t].p - p) < 1e-5, `${name}: confidence at ${t}`);
      const shown = await page.locator('.token').nth(t).locator('.said').nth(r).innerText();
      assert.equal(shown, json.classes[run.said[t].class]);
    }
  }
  assert.deepEqual(bad, [], name);
  await context.close();
  for (const width of [1200, 400]) {
    for (const colorScheme of ['light', 'dark']) {
      const { context, page, bad } = await open(name, { viewport: { width, height: 900 }, colorScheme });
      await page.evaluate(t => inspector.go(t), Math.min(T - 1, 11));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${name}: ${wide} wide at ${width}`);
      await page.screenshot({ path: join(out, `${name}-${width}-${colorScheme}.png`), fullPage: true });
      assert.deepEqual(bad, [], name);
      await context.close();
    }
  }
  {
    // For docs/mixers.md: what is below the heading.
    const { context, page } = await open(name, { viewport: { width: 1000, height: 900 }, colorScheme: 'light' });
    // A step with a target; of GPT the block in which a query looks its answer up, of DeltaProduct that with rotations.
    const t = json.targets.findLastIndex((y, t) => y !== null && t < (name === 'delta_product' ? 14 : 16));
    const layer = ['gpt', 'delta_product'].includes(name) ? 1 : 0;
    await page.evaluate(([t, layer]) => { inspector.choose({ layer }); inspector.go(t); }, [t, layer]);
    const box = await page.locator('.cards').last().boundingBox();
    const height = Math.min(box.y + box.height, 1500);
    await page.screenshot({ path: join(out, `figure_${name}.png`), fullPage: true, clip: { x: 0, y: 0, width: 1000, height } });
    await context.close();
  }
  console.log(`${name}: ${T} steps, ${(size / 1e3).toFixed(0)} kB, opened in ${ms} ms`);
}
console.log(`${checked} numbers in equations are as in the files`);
await browser.close();
