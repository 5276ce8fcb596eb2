// A JavaScript heap of objects, strings, arrays, Maps, and memory outside it (Buffers), all checked.
'use strict';
const crypto = require('crypto');
const mb = Number(process.argv[2]);

function assert(ok, what) {
  if (!ok) {
    console.error('wrong: ' + what);
    process.exit(1);
  }
}

const words = (mb * 1024 * 1024) / 2 / 8;
const numbers = new Float64Array(words);
for (let i = 0; i < words; i++) numbers[i] = (i * 2654435761) % 4294967291;

const buffers = [];
for (let i = 0; i < mb / 4; i++) {
  const b = Buffer.alloc(1024 * 1024);
  for (let k = 0; k < b.length; k += 4) b.writeUInt32LE((Math.imul(k, 48271) ^ i) >>> 0, k);
  buffers.push(b);
}

const objects = [];
const byName = new Map();
const count = mb * 1000;
for (let i = 0; i < count; i++) {
  const o = { id: i, name: 'object-' + ((i * 7919) % count), tags: [i % 7, i % 11, 'tag' + (i % 97)], next: null };
  if (i) objects[i - 1].next = o;
  objects.push(o);
  byName.set(o.name, o);
}

let total = 0;
for (let turn = 0; turn < 3; turn++) {
  // Garbage for the collector.
  for (let i = 0; i < count; i++) {
    const o = objects[(i * 104729) % count];
    o.tags = [o.id % 7, o.id % 11, 'tag' + (o.id % 97)];
    total += o.tags[0];
  }
  for (let o = objects[0], i = 0; o; o = o.next, i++) {
    assert(o.id === i && o.tags[2] === 'tag' + (i % 97) && o.tags[1] === i % 11, 'object ' + i);
  }
}
for (let i = 0; i < count; i += 3) {
  const name = 'object-' + ((i * 7919) % count);
  assert(byName.get(name).name === name, name);
}
for (let i = 0; i < words; i++) assert(numbers[i] === (i * 2654435761) % 4294967291, 'number ' + i);

const hash = crypto.createHash('sha256');
for (let i = 0; i < buffers.length; i++) {
  for (let k = 0; k < buffers[i].length; k += 4) {
    if (buffers[i].readUInt32LE(k) !== (Math.imul(k, 48271) ^ i) >>> 0) assert(false, `buffer ${i} at ${k}`);
  }
  hash.update(buffers[i]);
}
const text = JSON.stringify(objects.slice(0, 20000).map((o) => [o.id, o.name, o.tags]));
console.log(hash.digest('hex'), total, byName.size, crypto.createHash('md5').update(text).digest('hex'));
