// The library in WebAssembly against the program, for web_test.sh: the same runs, loss by loss.
import { readFileSync, readdirSync, existsSync } from 'node:fs';
import { join } from 'node:path';
import assert from 'node:assert/strict';

const [wasm, runs] = process.argv.slice(2);
const openLibrary = new Function(`${readFileSync(new URL('../src/book/wasm.js', import.meta.url), 'utf8')}; return openLibrary;`)();
const bytes = readFileSync(wasm), config = readFileSync(join(runs, 'config.toml'), 'utf8');

for (const name of readdirSync(runs).filter(run => existsSync(join(runs, run, 'metrics.jsonl')))) {
  const [model, seed] = name.split('-seed');
  const lines = readFileSync(join(runs, name, 'metrics.jsonl'), 'utf8').trim().split('\n').map(line => JSON.parse(line));
  const lib = await openLibrary(bytes);
  lib.make(config.replace(/^models = .*$/m, `models = ["${model}"]`).replace(/^seed = .*$/m, `seed = ${seed}`));
  const losses = lines.filter(line => 'loss' in line);
  let most = 0, same = 0;
  for (const { step, loss } of losses) {
    const here = lib.step(step - lib.steps());
    most = Math.max(most, Math.abs(here - loss));
    same += here === loss;
  }
  const accuracy = lib.evaluate(), there = JSON.parse(readFileSync(join(runs, name, 'result.json'))).accuracy;
  console.log(`${name}: ${losses.length} losses, ${same} of the same bits, the others at most ${most.toExponential(1)} apart; accuracy ${JSON.stringify(accuracy)} here, ${JSON.stringify(there)} there`);
  assert.ok(losses.length >= 1000 && most <= 1e-5, `${name}: losses are ${most} apart`);
}

// An invalid request gives an error that says why, and nothing stops.
const lib = await openLibrary(bytes);
for (const [toml, why] of [['models = ["lstn"]', /did you mean 'lstm'/], ['steps = ', /./], ['models = ["lstm"]\nlr = "x"', /lr/]]) {
  assert.throws(() => lib.make(toml), why);
}
assert.throws(() => lib.step(1), /make one first/);
lib.make('models = ["lstm"]');
assert.throws(() => lib.trace('0120'), /'2' is no token|'20' is no token|'0120'/);
assert.equal(lib.trace('0 1 1').tokens.join(''), '011');
// A table of learned positions has an end.
lib.make('models = ["gpt"]\neval_lens = [8]\ntrain_len = 8');
assert.throws(() => lib.trace('0'.repeat(9)), /positions for 8/);
console.log('what cannot be is refused with a reason');
