// Runs PyTorch's MemoryViz.js on snapshots, without a browser:
//     node viewer.mjs MemoryViz.js FOLDER          Ends with "N passed, N failed".
// It calls the unpickler, annotation, plots and replay; the page is replaced by an object that
// accepts every call, and scales by linear functions. browser.sh opens the page itself.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const [source, folder] = process.argv.slice(2);
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'viewer-'));
let passed = 0, failed = 0;

async function check(name, func) {
  try {
    await func();
    ++passed;
    console.log(`ok ${name}`);
  } catch (e) {
    ++failed;
    console.log(`not ok ${name}: ${e.stack.split('\n').slice(0, 4).join('\n')}`);
  }
}
function expect(good, what) {
  if (!good) throw new Error(what);
}

// The viewer as a module, with `head` in place of its imports, which also exports `names`.
function load_viewer(file, head, names) {
  const body = fs.readFileSync(source, 'utf8').replace(/^import .*;$/gm, '');
  const at = path.join(scratch, file);
  fs.writeFileSync(at, `${head}\n${body}\nexport {${names.join(', ')}};\n`);
  return import(pathToFileURL(at));
}
function pickle_of(file) {
  const bytes = fs.readFileSync(file);
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}
const files = fs.readdirSync(folder).filter(f => f.endsWith('.pickle')).sort();

const stub = `
const any = new Proxy(function () {}, {
  get: (_t, key) => key === Symbol.toPrimitive ? () => 1 : key === 'value' ? 0 : any,
  apply: () => any, construct: () => any, set: () => true,
});
const d3 = any, axisLeft = any, zoom = any, zoomIdentity = any, brushX = any;
const window = any, document = any;
function scaleLinear() {
  const s = x => x;
  return Object.assign(s, {domain: () => s, range: () => s, invert: x => x});
}
export {any};
`;
const viewer = await load_viewer('functions.mjs', stub,
  ['unpickle', 'annotate_snapshot', 'process_alloc_data', 'MemoryView']);

function functions(file) {
  const data = viewer.unpickle(pickle_of(file));
  viewer.annotate_snapshot(data);
  expect(Array.isArray(data.segments) && data.segments.length > 0, 'no segments');
  for (const segments of [false, true]) {
    const plot = viewer.process_alloc_data(data, 0, segments, 15000);
    expect(plot.elements_length > 0 && plot.max_size > 0, 'nothing to draw');
    for (let i = 0; i < plot.elements_length; ++i)
      expect(plot.context_for_id(i).length > 0, 'an element without a text');
  }
  // the state at every event: throws when a block lies in no segment
  const view = viewer.MemoryView(viewer.any, {register() {}}, data, 0);
  const n = data.device_traces[0].length, step = Math.max(1, Math.floor(n / 300));
  for (let i = n - 1; i >= 0; i -= step) view.draw(i);
}
for (const f of files) await check(`viewer ${f}`, () => functions(path.join(folder, f)));

// Blocks without their segments must fail, or the checks above could not.
await check('viewer finds what is planted', () => {
  const data = viewer.unpickle(pickle_of(path.join(folder, 'plain.pickle')));
  viewer.annotate_snapshot(data);
  data.segments[0].device = 1;
  data.device_traces[0] = data.device_traces[0].filter(e => !e.action.startsWith('segment'));
  const view = viewer.MemoryView(viewer.any, {register() {}}, data, 0);
  let thrown = false;
  try {
    view.draw(0);
  } catch {
    thrown = true;
  }
  expect(thrown, 'a block without a segment was accepted');
});

fs.rmSync(scratch, {recursive: true});
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
