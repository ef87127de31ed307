// Runs the unpickler, the annotation, the plots and the replay of PyTorch's MemoryViz.js on snapshots, without a browser:
//     node viewer.mjs MemoryViz.js FOLDER          Ends with "N passed, N failed".
// Its imports and its page are replaced by an object that takes every call; scales by linear functions.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const [source, folder] = process.argv.slice(2);
const names = ['unpickle', 'annotate_snapshot', 'process_alloc_data', 'MemoryView'];
const stub = `
const any = new Proxy(function () {}, {
  get: (_t, key) => key === Symbol.toPrimitive ? () => 1 : key === 'value' ? 0 : any,
  apply: () => any, construct: () => any, set: () => true,
});
const d3 = any, axisLeft = any, zoom = any, zoomIdentity = any, brushX = any, window = any, document = any;
function scaleLinear() {
  const s = x => x;
  return Object.assign(s, {domain: () => s, range: () => s, invert: x => x});
}
`;
const text = stub + fs.readFileSync(source, 'utf8').replace(/^import .*;$/gm, '') + `\nexport {${names.join(', ')}};\n`;
const module_path = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'viewer-')), 'viewer.mjs');
fs.writeFileSync(module_path, text);
const viewer = await import(pathToFileURL(module_path));
let passed = 0, failed = 0;

function check(name, func) {
  try {
    func();
    ++passed;
    console.log(`ok ${name}`);
  } catch (e) {
    ++failed;
    console.log(`not ok ${name}: ${e.message}`);
  }
}
function expect(good, what) {
  if (!good) throw new Error(what);
}

function load(file) {
  const bytes = fs.readFileSync(file);
  const data = viewer.unpickle(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  viewer.annotate_snapshot(data);
  return data;
}

function all(file) {
  const data = load(file);
  expect(Array.isArray(data.segments) && data.segments.length > 0, 'no segments');
  for (const segments of [false, true]) {
    const plot = viewer.process_alloc_data(data, 0, segments, 15000);
    expect(plot.elements_length > 0 && plot.max_size > 0, 'nothing to draw');
    for (let i = 0; i < plot.elements_length; ++i) expect(plot.context_for_id(i).length > 0, 'an element without a text');
  }
  // the state at every event: throws when a block lies in no segment
  const view = viewer.MemoryView(globalThis.nothing ?? stand_in(), {register() {}}, data, 0);
  const n = data.device_traces[0].length, step = Math.max(1, Math.floor(n / 300));
  for (let i = n - 1; i >= 0; i -= step) view.draw(i);
}
function stand_in() {
  const any = new Proxy(function () {}, {get: (_t, key) => key === Symbol.toPrimitive ? () => 1 : any, apply: () => any});
  return any;
}

for (const f of fs.readdirSync(folder).filter(f => f.endsWith('.pickle')).sort()) check(`viewer ${f}`, () => all(path.join(folder, f)));
fs.rmSync(path.dirname(module_path), {recursive: true});
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
