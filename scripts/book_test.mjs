// The annotated zoo in a browser; run by book_test.sh. Every page is opened and every link followed; a model is trained
// in its page, and its losses are the program's.
import { chromium } from 'playwright-core';
import { readFileSync, readdirSync, existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';

const [out, site, runs] = process.argv.slice(2).map(path => resolve(path));
const LIMIT = Number(process.env.OPEN_MS ?? 1000);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run'],
});
const url = name => pathToFileURL(join(site, name)).href;
const trains = existsSync(join(site, 'engine.js'));

async function open(name, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  const bad = [];
  page.on('pageerror', e => bad.push(String(e)));
  page.on('console', m => m.type() === 'error' && bad.push(m.text()));
  page.on('request', r => /^(file|data|blob):/.test(r.url()) || bad.push(`asks the network for ${r.url()}`));
  await page.goto(url(name));
  const ms = await page.evaluate(() => Math.round(performance.getEntriesByType('navigation')[0].domInteractive));
  return { context, page, bad, ms };
}
const ready = page => page.waitForFunction(() => window.lab && document.querySelector('.panel:not([hidden]) .seen canvas'), null, { timeout: 60000 });

const pages = readdirSync(site).filter(name => name.endsWith('.html'));
const isMixer = name => !['index.html', 'tour.html', 'table.html', 'exercises.html', 'derivatives.html'].includes(name);
let links = 0;
for (const name of pages) {
  let { context, page, bad, ms } = await open(name);
  for (let again = 0; ms >= LIMIT && again < 4; again++) {
    await context.close();
    ({ context, page, bad, ms } = await open(name));
  }
  assert.ok(ms < LIMIT, `${name}: opened after ${ms} ms`);
  // Headings go down a level at a time, and every control has a name.
  const told = await page.evaluate(() => ({
    headings: [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1])),
    nameless: [...document.querySelectorAll('a, button, input, canvas')].filter(e =>
      !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML),
    wide: document.documentElement.scrollWidth - innerWidth,
    hrefs: [...document.querySelectorAll('a')].map(a => a.href),
    flat: [...document.querySelectorAll('math')].filter(m => m.getBoundingClientRect().height < 8).length,
  }));
  assert.ok(told.headings[0] === 1 && told.headings.every((h, i) => i === 0 || h <= told.headings[i - 1] + 1), `${name}: headings ${told.headings}`);
  assert.deepEqual(told.nameless, [], name);
  assert.ok(told.wide <= 0, `${name}: ${told.wide} pixels wider than the window`);
  assert.equal(told.flat, 0, `${name}: mathematics that is not drawn`);
  for (const href of told.hrefs.filter(href => href.startsWith('file:'))) {
    const [to, place] = href.slice(url('').length).split('#');
    assert.ok(existsSync(join(site, to)), `${name}: ${href}`);
    if (place) assert.ok(readFileSync(join(site, to), 'utf8').includes(` id="${place}"`), `${name}: ${href}`);
    links++;
  }
  if (isMixer(name) && trains) {
    await ready(page);
    // It opens with a trained model, whose answers the program has counted.
    const given = await page.evaluate(() => ({ told: document.querySelector('.told').textContent, accuracy: lab.panels()[0].given.accuracy, here: lab.lib.evaluate(), steps: lab.lib.steps() }));
    assert.match(given.told, /trained for 1000 steps when this page was made/, name);
    assert.equal(given.steps, 0, name);
    for (const [i, [len, share]] of given.accuracy.entries()) assert.ok(Math.abs(given.here[i][1] - share) < 0.01, `${name} at ${len}: ${given.here[i][1]} here, ${share} there`);
    await page.locator('#bits').fill('1101');
    assert.equal(await page.locator('.panel:not([hidden]) .seen td').count(), 12, name);
    assert.equal(await page.locator('.panel:not([hidden]) .seen caption').innerText().then(text => / of 4 right/.test(text)), true, name);
    await page.locator('#bits').fill('1121');
    assert.match(await page.locator('.panel .wrong').first().innerText(), /'2/, name);
    // A step of training changes what the model says, and a fresh start brings it back; so does the trained model.
    await page.locator('#bits').fill('1101');
    const says = () => page.evaluate(() => JSON.stringify(lab.lib.trace('1101').logits)), trained = await says();
    await page.locator('#restart').click();
    const said = await says();
    assert.notEqual(said, trained, `${name}: random weights answer as trained ones`);
    const seen = () => page.evaluate(() => [...document.querySelectorAll('.panel:not([hidden]) .seen canvas')].map(c => c.toDataURL()).join());
    const before = await seen();
    await page.evaluate(() => { document.querySelector('#train').click(); });
    await page.waitForFunction(() => lab.lib.steps() > 0 && document.querySelector('.loss').textContent !== '–', null, { timeout: 120000 });
    await page.evaluate(() => { const b = document.querySelector('#train'); if (b.textContent === 'Pause') b.click(); });
    assert.notEqual(await says(), said, `${name}: training leaves no trace`);
    await page.locator('#restart').click();
    assert.ok(await seen() === before && await says() === said, `${name}: the same seed, another start`);
    await page.locator('#given').click();
    assert.equal(await says(), trained, `${name}: the trained model is another`);
  }
  // At 400 pixels nothing is cut off.
  await page.setViewportSize({ width: 400, height: 800 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name}: wider than 400 pixels`);
  assert.deepEqual(bad, [], name);
  await context.close();
}
console.log(`${pages.length} pages opened, ${links} links followed`);

// An equation lights up the lines that compute it, by click and by keyboard.
{
  const { context, page, bad } = await open('delta_net.html');
  const lit = () => page.evaluate(() => [...document.querySelectorAll('.line.lit')].map(line => line.textContent).join(''));
  await page.locator('#eq-2').click();
  assert.match(await lit(), /sigmoid/);
  await page.locator('#eq-3 .lines').first().focus();
  await page.keyboard.press('Enter');
  assert.match(await lit(), /let error/);
  assert.ok(await page.evaluate(() => document.activeElement.matches('.line.lit')), 'the line has the focus');
  assert.ok(await page.evaluate(() => {
    const line = document.querySelector('.line.lit').getBoundingClientRect(), frame = document.querySelector('.source').getBoundingClientRect();
    return line.top >= frame.top && line.bottom <= frame.bottom && frame.top < innerHeight;
  }), 'the line is in sight');
  await page.locator('.back').first().click();
  assert.ok(await page.evaluate(() => location.hash.startsWith('#eq-')));
  // The op's formula too, and back.
  await page.locator('#eq-3 .lines').nth(1).click();
  assert.ok(await page.evaluate(() => document.activeElement.matches('#op .line.lit')), 'the line of the op has the focus');
  assert.match(await lit(), /outer\(k, written\)/);
  await page.locator('#op .back').first().click();
  assert.ok(await page.evaluate(() => location.hash.startsWith('#op-eq-')));
  assert.deepEqual(bad, []);
  await context.close();
}

// The tour, stepped through; and what its pictures say is so.
{
  const { context, page, bad } = await open('tour.html');
  const stops = await page.locator('.stop').all();
  assert.equal(stops.length, 8);
  let random = 7;
  const draw = n => (random = random * 48271 % 2147483647) % n;
  for (const stop of stops) {
    const name = await stop.locator('.picture').getAttribute('data-picture'), input = stop.locator('input[type=text]');
    assert.equal(await stop.locator('.sentence').count(), 3);
    const n = (await input.inputValue()).length;
    await stop.locator('.step').focus();
    for (let t = 0; t <= n; t++) {
      await page.keyboard.press('Enter');
      assert.match(await stop.locator('.now').innerText(), t === 0 ? /^At first: / : /^After \S+: /, name);
      assert.doesNotMatch(await stop.innerHTML(), /NaN|undefined/, name);
    }
    await stop.locator('.play').click();
    await page.waitForFunction(name => /^After/.test(document.querySelector(`[data-picture=${name}] .now`).textContent), name);
    await stop.locator('.play').click();
    await input.fill('?');
    assert.match(await stop.locator('.now').innerText(), /no token here; expected/);
    const alphabet = await page.evaluate(name => Object.keys(tour[name].tokens), name);
    for (let again = 0; again < 5; again++) {
      const tokens = Array.from({ length: 3 + draw(12) }, () => alphabet[draw(alphabet.length)]).join('');
      await input.fill(tokens);
      const said = await stop.locator('.now').innerText(), ones = [...tokens].filter(t => t === '1').length;
      const number = text => Number(said.match(text)[1].replace('−', '-'));
      if (['lstm', 'reflection', 'counter'].includes(name)) assert.ok(said.includes(ones % 2 ? 'odd' : 'even'), `${name}: ${said}`);
      if (name === 'counter') assert.equal(number(/h = (\d+)/), ones);
      if (name === 'rotation') assert.ok(said.includes(`turned to ${120 * (ones % 3)}°`), said);
      if (name === 'linear') assert.equal(number(/under a: (−?[\d.]+)/), [...tokens].reduce((x, t) => x + (t === 'a') - (t === 'A'), 0));
      if (name === 'delta') assert.ok(Math.abs(number(/under a: (−?[\d.]+)/) - [...tokens].reduce((x, t) => /a/i.test(t) ? (x + (t === 'a' ? 1 : -1)) / 2 : x, 0)) < 1e-3, said);
      if (name === 'permutation') {
        let order = [...'ABCDE'];
        for (const t of tokens) order = t === 's' ? [order[1], order[0], ...order.slice(2)] : [order.at(-1), ...order.slice(0, -1)];
        assert.ok(said.includes(order.join(' ')), said);
      }
    }
    await stop.locator('summary').click();
    assert.ok(await stop.locator('details p').isVisible());
  }
  // The text about orders is right: five times c bring back the first order, and four times sc.
  const told = async tokens => { await stops[6].locator('input[type=text]').fill(tokens); return stops[6].locator('.now').innerText(); };
  assert.match(await told('ccccc'), /as at first/);
  assert.match(await told('scscscsc'), /as at first/);
  assert.deepEqual(bad, []);
  await context.close();
}

// The inspector inside a page, of the model and its parent, on bits that are typed: its numbers are the page's.
if (trains) {
  const { context, page, bad } = await open('delta_net.html');
  await ready(page);
  await page.locator('#beside').check();
  await page.waitForFunction(() => document.querySelectorAll('.panel:not([hidden]) .seen table').length === 2);
  await page.locator('#inspector summary').click();
  const frame = await (await page.locator('#frame').elementHandle()).contentFrame();
  await page.locator('#bits').fill('110100');
  await page.waitForFunction(() => document.querySelector('#frame').contentWindow.inspector?.data.tokens.length === 6, null, { timeout: 20000 });
  assert.equal(await frame.locator('.run').count(), 2);
  const [there, here] = await page.evaluate(() => {
    const inspector = document.querySelector('#frame').contentWindow.inspector, { data, numbers } = inspector;
    const of = (run, name) => [...numbers(data.runs[run].layers[0][name])];
    const panels = lab.panels().map(panel => panel.lib.trace('110100').blocks[0]);
    return [[of(0, 'S'), of(1, 'S')], panels.map(block => block.find(q => q.name === 'S').data)];
  });
  assert.deepEqual(there, here);
  assert.ok(there[0].some(x => x !== 0));
  const before = await frame.locator('.now').innerText();
  await frame.locator('[aria-label="next step"]').click();
  assert.notEqual(await frame.locator('.now').innerText(), before);
  assert.ok(await frame.locator('.equations dt math').count() > 3, 'equations of the inspector');
  await page.locator('#frame').screenshot({ path: join(out, 'inspector.png') });
  assert.deepEqual(bad, []);
  await context.close();
}

// The losses of the program, step by step, in the page; and what the buttons do.
if (trains) {
  for (const model of ['lstm', 'delta_net']) {
    const { context, page, bad } = await open(`${model}.html`);
    await ready(page);
    const config = readFileSync(join(runs, 'config.toml'), 'utf8').replace(/^models = .*$/m, `models = ["${model}"]`);
    const there = readFileSync(join(runs, `${model}-seed0`, 'metrics.jsonl'), 'utf8').trim().split('\n').map(line => JSON.parse(line)).filter(line => 'loss' in line);
    const here = await page.evaluate(([config, n]) => {
      lab.lib.make(config);
      return Array.from({ length: n }, () => lab.lib.step(1));
    }, [config, there.length]);
    const apart = Math.max(...there.map(({ loss }, i) => Math.abs(loss - here[i])));
    const same = there.filter(({ loss }, i) => loss === here[i]).length;
    console.log(`${model}: ${there.length} losses in the page, ${same} of the program's bits, at most ${apart} apart`);
    assert.ok(there.length >= 1000 && apart <= 1e-5, `${model}: ${apart} apart`);
    assert.deepEqual(bad, []);
    await context.close();
  }
  // An LSTM learns parity by the button.
  const { context, page, bad } = await open('lstm.html');
  await ready(page);
  const start = Date.now();
  await page.locator('#train').click();
  await page.waitForFunction(() => document.querySelector('[data-len="16"]').textContent === '100.0 %', null, { timeout: 300000 });
  assert.ok(Date.now() - start < 60000, `an LSTM takes ${Date.now() - start} ms to learn parity`);
  console.log(`an LSTM has learned parity after ${((Date.now() - start) / 1000).toFixed(0)} s, at step ${await page.locator('.panel .step').first().innerText()}`);
  await page.waitForFunction(() => document.querySelector('#train').textContent === 'Trained', null, { timeout: 300000 });
  console.log(`${await page.locator('.panel .told').first().innerText()} ${((Date.now() - start) / 1000).toFixed(0)} s`);
  assert.equal(await page.locator('.panel:not([hidden]) .seen .wrong').count(), 0);
  await page.screenshot({ path: join(out, 'lstm-trained.png'), fullPage: true });
  assert.deepEqual(bad, []);
  await context.close();
  // A DeltaNet with eigenvalues down to −1 beside its parent: one finds the rule, the other does not.
  const two = await open('delta_net.html');
  await ready(two.page);
  await two.page.locator('#beside').check();
  await two.page.waitForFunction(() => document.querySelectorAll('.panel:not([hidden]) .seen table').length === 2);
  await two.page.locator('#train').click();
  await two.page.waitForFunction(() => document.querySelector('#train').textContent === 'Trained', null, { timeout: 300000 });
  const right = await two.page.locator('[data-len="32"]').allInnerTexts();
  console.log(`DeltaNet and its parent at length 32: ${right.join(' and ')}`);
  assert.ok(parseFloat(right[0]) > 99 && parseFloat(right[1]) < 90, right.join());
  await two.page.locator('#place').fill('3');
  assert.match(await two.page.locator('.panel .heads figcaption').first().innerText(), /after bit 3/);
  await two.page.locator('#lab').screenshot({ path: join(out, 'delta_net-beside.png') });
  assert.deepEqual(two.bad, []);
  await two.context.close();
}

for (const name of pages) {
  for (const [width, colorScheme] of [[1200, 'light'], [1200, 'dark'], [400, 'light'], [400, 'dark']]) {
    // A long page may be more than a browser on a busy machine draws at once.
    for (let left = 3; left > 0; left--) {
      const { context, page } = await open(name, { viewport: { width, height: 900 }, colorScheme });
      try {
        if (isMixer(name) && trains) await ready(page);
        if (isMixer(name)) await page.locator('#eq-3').click();
        await page.screenshot({ path: join(out, `${name.replace('.html', '')}-${width}-${colorScheme}.png`), fullPage: true });
        left = 0;
      } catch (e) {
        if (left === 1) throw e;
      } finally {
        await context.close();
      }
    }
  }
}
await browser.close();
