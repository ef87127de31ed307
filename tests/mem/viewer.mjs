// Runs PyTorch's MemoryViz.js on snapshots, without a browser:
//     node viewer.mjs MemoryViz.js FOLDER          Ends with "N passed, N failed".
// Part 1 calls its unpickler, annotation, plots and replay; its imports and its page are replaced by
// an object that accepts every call, and scales by linear functions.
// Part 2 needs the packages d3 and jsdom (Debian: node-d3, node-jsdom; NODE_PATH says where): it
// loads every file into the viewer's own page, opens every tab, and moves the
// mouse over what is drawn.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {createRequire} from 'node:module';
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

// ---- part 1: its functions

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

// ---- part 2: its page

async function page_of() {
  const require = createRequire(import.meta.url);
  let jsdom;
  try {
    jsdom = require('jsdom');
    require('d3');
  } catch (e) {
    console.log(`SKIP the viewer's page: ${e.message.split('\n')[0]} (Debian: node-d3, node-jsdom)`);
    return null;
  }
  const errors = [], virtualConsole = new jsdom.VirtualConsole();
  virtualConsole.on('jsdomError', e => errors.push(e.detail?.stack ?? e.message));
  const {window} = new jsdom.JSDOM('<!doctype html><html><head></head><body></body></html>',
    {pretendToBeVisual: true, virtualConsole});
  window.Element.prototype.scrollIntoViewIfNeeded = () => {};
  globalThis.window = window;
  globalThis.document = window.document;
  globalThis.navigator ??= window.navigator;
  globalThis.viewer_require = require;
  const head = `
const d3 = globalThis.viewer_require('d3');
const {axisLeft, scaleLinear, zoom, zoomIdentity, brushX} = d3;
const console = {log() {}}; // it prints each snapshot
`;
  const module = await load_viewer('page.mjs', head, ['kinds', 'finished_loading', 'snapshot_change']);
  return {window, module, errors};
}

function mouse(window, element, type) { // for this element alone: jsdom has no viewBox to zoom
  element.dispatchEvent(new window.MouseEvent(type, {clientX: 5, clientY: 5}));
}
function sample(list, count) {
  const step = Math.max(1, Math.floor(list.length / count));
  return list.filter((_item, i) => i % step === 0);
}

async function show(page, file, kind) {
  const {window, module} = page, document = window.document;
  const [, view] = document.querySelectorAll('select');
  for (const tab of document.querySelectorAll('body > div')) tab.remove();
  view.value = kind;
  expect(view.value === kind, `there is no tab ${kind}`);
  module.finished_loading(`${file} ${kind}`, pickle_of(path.join(folder, file)));
  await new Promise(done => window.requestAnimationFrame(() => window.requestAnimationFrame(done)));
  const tab = document.querySelector('body > div');
  if (kind === 'Allocator Settings') {
    expect(tab.textContent.includes('garbage_collection_threshold'), 'no settings are shown');
    return;
  }
  const drawn = [...tab.querySelectorAll('svg rect, svg polygon')];
  expect(drawn.length > 0, `${kind}: nothing is drawn`);
  expect(!tab.innerHTML.includes('NaN'), `${kind}: a picture with NaN`);
  let told = 0;
  for (const element of sample(drawn, 60)) {
    const before = tab.textContent;
    mouse(window, element, 'mouseover');
    told += tab.textContent !== before;
    mouse(window, element, 'mousedown');
  }
  expect(told > 0, `${kind}: nothing is said about what is drawn`);
  for (const event of sample([...tab.querySelectorAll('div > div > div > pre')], 20))
    mouse(window, event, 'mousedown'); // the state at this event
  expect(!page.errors.length, page.errors[0]);
}

const page = await page_of();
for (const f of page ? files : [])
  await check(`viewer page ${f}`, async () => {
    page.errors.length = 0;
    for (const kind in page.module.kinds) await show(page, f, kind);
  });

fs.rmSync(scratch, {recursive: true});
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
