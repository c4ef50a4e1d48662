// The library as a module of WebAssembly (web/src/lib.rs): one trainer, whose texts go through the module's memory.
// Also for Node.js, where the test of the module runs.
async function openLibrary(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const lib = instance.exports;
  const give = text => {
    const utf8 = new TextEncoder().encode(text), at = lib.buffer(utf8.length);
    new Uint8Array(lib.memory.buffer, at, utf8.length).set(utf8);
  };
  const answer = () => new TextDecoder().decode(new Uint8Array(lib.memory.buffer, lib.answer(), lib.answer_len()));
  // A panic has left its message, and the module cannot go on.
  const call = (name, ...given) => {
    try {
      return lib[name](...given);
    } catch (e) {
      throw new Error(`the model stopped: ${answer() || e.message}`);
    }
  };
  const ask = name => {
    if (!call(name)) throw new Error(answer());
    return JSON.parse(answer());
  };
  return {
    // A fresh trainer of this configuration, TOML.
    make(toml) { give(toml); return ask('make'); },
    // The weights of a safetensors file, for the model that was made.
    load(weights) {
      const at = lib.buffer(weights.length);
      new Uint8Array(lib.memory.buffer, at, weights.length).set(weights);
      ask('load');
    },
    // The loss of the last of n steps.
    step(n) {
      const loss = call('step', n);
      if (Number.isNaN(loss)) throw new Error(answer());
      return loss;
    },
    steps: () => lib.steps(),
    // [[length, accuracy], …]
    evaluate: () => ask('evaluate'),
    // The model's quantities along this sequence.
    trace(text) { give(text); return ask('trace'); },
    // The same as data of the inspector's page.
    inspect(text) { give(text); return ask('inspect'); },
  };
}

// The bytes of the module, from the text that engine.js holds: base64 of gzip.
async function unpacked(base64) {
  const packed = Uint8Array.from(atob(base64), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
