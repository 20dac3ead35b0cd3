// Buffers, strings and objects: large buffers come from the C library's calloc and malloc, objects from V8's own heap.
const crypto = require('crypto');
const zlib = require('zlib');
let digest = crypto.createHash('sha1');
for (let step = 0; step < 80; step++) {
  const buffer = Buffer.alloc(4 << 20, 'line ' + step + '\n');
  const packed = zlib.deflateRawSync(buffer, { level: 1 });
  const both = Buffer.concat([packed, buffer.subarray(0, 1 << 20)]);
  digest.update(both);
  const numbers = new Float64Array(1 << 19).map((_, i) => i * step);
  digest.update(Buffer.from(numbers.buffer, 0, 4096));
  const objects = Array.from({ length: 20000 }, (_, i) => ({ key: 'k' + i, value: [i, step] }));
  digest.update(JSON.stringify(objects));
}
console.log(digest.digest('hex'));
