// The page of browser.sh: clicks every event of every view of PyTorch's memory viewer. The first
// part stands before the viewer's code, the second behind it, in one module.

// d3 of version 5 passes the event beside the arguments of a listener, later ones as the first.
if (d3.version.startsWith('5.')) {
  const with_event = f => f && function (datum) { return f.call(this, d3.event, datum); };
  const selected = d3.selection.prototype, on = selected.on;
  selected.on = function (type, listener, ...more) {
    if (arguments.length < 2) return on.call(this, type);
    return on.call(this, type, with_event(listener), ...more);
  };
  for (const name of ['zoom', 'brushX']) {
    const make = d3[name];
    d3[name] = () => {
      const made = make(), made_on = made.on;
      // its own listeners are put on by selection.call(made): with the datum first
      const wrapped = sel => {
        const ours = selected.on;
        selected.on = on;
        made(sel);
        selected.on = ours;
      };
      Object.assign(wrapped, made);
      for (const key in made)
        wrapped[key] = (...a) => {
          if (key === 'on' && a.length > 1) a[1] = with_event(a[1]);
          const got = (key === 'on' ? made_on : made[key]).apply(made, a);
          return got === made ? wrapped : got;
        };
      return wrapped;
    };
  }
}
const {axisLeft, scaleLinear, zoom, zoomIdentity, brushX} = d3;
Element.prototype.scrollIntoViewIfNeeded ??= function () {};
console.log = () => {}; // the viewer prints each snapshot
const wrong = [];
addEventListener('error', e => wrong.push(e.message));
addEventListener('unhandledrejection', e => wrong.push(String(e.reason)));
// ---- the viewer

function mouse(element, type) {
  const box = element.getBoundingClientRect();
  element.dispatchEvent(new MouseEvent(type, {bubbles: true, cancelable: true, view: window,
    clientX: box.x + box.width / 2, clientY: box.y + box.height / 2}));
}
function expect(good, what) {
  if (!good) throw new Error(what);
}

// Every event of a history, one after the other, and back; then what is drawn at the last one.
function click_history(tab, events) {
  const rows = [...tab.querySelectorAll('div > div > div > pre')];
  expect(rows.length === events.length, `${rows.length} rows for ${events.length} events`);
  let drawn = 0;
  for (const row of [...rows, ...rows.slice().reverse()]) {
    for (const type of ['mouseover', 'mousedown', 'click', 'mouseleave']) mouse(row, type);
    expect(!wrong.length, `${row.textContent}: ${wrong[0]}`);
    drawn = Math.max(drawn, tab.querySelectorAll('svg rect').length);
  }
  expect(drawn > 0 || !events.length, 'no block or segment is drawn at any event');
  return rows.length;
}

function click_drawn(tab) {
  // not the small map: an overlay covers what it draws, and is no event
  const all = [...tab.querySelectorAll('svg rect, svg polygon')].filter(
    e => !e.closest('svg').querySelector('.overlay'));
  for (const element of all) {
    for (const type of ['mouseover', 'mousemove', 'mousedown', 'mouseup', 'click', 'mouseleave'])
      mouse(element, type);
    expect(!wrong.length, wrong[0]);
  }
  return all.length;
}

function show(name, data, kind, device) {
  const [, view_select, device_select] = document.querySelectorAll('select');
  let clicks = 0;
  for (const d of Object.values(selection_to_div)) d.attr('style', 'display: none');
  view_select.value = kind;
  expect(view_select.value === kind, `there is no view ${kind}`);
  device_select.value = String(device);
  snapshot_change(name);
  const tab = selection_to_div[[name, kind, device]]?.node();
  expect(tab, 'no tab was made');
  expect(!tab.innerHTML.includes('NaN'), 'a picture with NaN');
  if (kind === 'Allocator State History')
    clicks += click_history(tab, data.device_traces[device]);
  if (kind === 'Allocator Settings')
    expect(tab.textContent.includes('garbage_collection_threshold'), 'no settings are shown');
  clicks += click_drawn(tab);
  expect(!wrong.length, wrong[0]);
  return clicks;
}

// A block in no segment must be found, or nothing above could fail.
function planted() {
  const data = unpickle(decode_base64(snapshot_base64));
  const device = data.device_traces.findIndex(t => t.some(e => e.action.startsWith('segment')));
  if (device < 0) return;
  annotate_snapshot(data);
  data.segments = data.segments.filter(s => s.device !== device);
  data.device_traces[device] = data.device_traces[device].filter(e => !e.action.startsWith('segment'));
  if (!data.device_traces[device].some(e => e.action === 'free_completed')) return;
  snapshot_cache['planted'] = data;
  let found = false;
  try {
    show('planted', data, 'Allocator State History', device);
  } catch {
    found = true;
  }
  wrong.length = 0;
  expect(found, 'blocks without segments were accepted');
}

function all() {
  let clicks = 0, at = '';
  try {
    snapshot_cache[snapshot_name] = unpickle_and_annotate(decode_base64(snapshot_base64));
    const data = snapshot_cache[snapshot_name];
    for (const device of data.device_traces.keys()) {
      if (!data.device_traces[device].length && !data.segments.some(s => s.device === device)) continue;
      for (const kind in kinds) {
        at = `${kind}, device ${device}: `;
        clicks += show(snapshot_name, data, kind, device);
      }
    }
    at = '';
    expect(clicks > 0, 'nothing was clicked');
    planted();
    return `ok ${snapshot_name}: ${clicks} clicks`;
  } catch (e) {
    return `not ok ${snapshot_name}: ${at}${e.message} ${e.stack.split('\n')[1] ?? ''}`;
  }
}
const said = all();
document.body.innerHTML = '<pre id="said"></pre>';
document.getElementById('said').textContent = said.replace(/[<>&\n]/g, ' ');
