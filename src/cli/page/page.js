// The page of runs: loads their figures from the server and listens for more, or reads them from the
// report that it is part of. Text of a run only ever becomes a text node.
'use strict';
(() => {
  // --- small helpers ---------------------------------------------------------------------------
  const $ = id => document.getElementById(id);
  function h(tag, props, ...kids) {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(props || {})) {
      if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
      else if (k === 'class') e.className = v;
      else if (k === 'color') e.style.background = v;
      else if (k.startsWith('aria-')) e.setAttribute(k, String(v));
      else if (v !== false && v != null) e.setAttribute(k, v === true ? '' : v);
    }
    e.append(...kids.flat().filter(k => k != null && k !== false).map(k => k instanceof Node ? k : String(k)));
    return e;
  }
  let colours = {}; // of the theme; reading one from the style costs more than drawing a line
  const css = name => colours[name] ||= getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const known = v => typeof v === 'number' && Number.isFinite(v);
  const RUN_COLOURS = ['#3f6fd8', '#e2832b', '#2f9e6e', '#c6458b', '#8a63d2', '#c9a227', '#2aa5b8', '#d2554a'];
  const colourOf = i => RUN_COLOURS[i % RUN_COLOURS.length];
  const rankColour = (r, n) => n <= RUN_COLOURS.length ? RUN_COLOURS[r] : `hsl(${(r * 137.508 + 218) % 360} ${46 + r % 2 * 12}% ${[54, 44, 64][r % 3]}%)`;

  function short(v) { // 1234567 -> 1.23M
    if (!known(v)) return '–';
    const a = Math.abs(v);
    if (a !== 0 && (a < 1e-3 || a >= 1e15)) return v.toExponential(2).replace(/\.?0*e/, 'e').replace('e+', 'e');
    for (const [size, letter] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']])
      if (a >= size * 0.9995) return trim((v / size).toPrecision(3)) + letter;
    return trim(v.toPrecision(a < 1 ? 3 : 4));
  }
  const trim = s => s.includes('.') && !s.includes('e') ? s.replace(/\.?0+$/, '') : s;
  const exact = v => !known(v) ? '–' : Number.isInteger(v) ? v.toLocaleString('en') : trim(v.toPrecision(7));
  function bytes(v) {
    if (!known(v)) return '–';
    let unit = 0;
    while (Math.abs(v) >= 1024 && unit < 5) { v /= 1024; unit++; }
    return `${unit ? trim(v.toPrecision(v >= 1000 ? 4 : 3)) : v} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit]}`;
  }
  function duration(s) {
    if (!known(s)) return '–';
    if (s < 1) return `${trim((s * 1e3).toPrecision(3))} ms`;
    if (s < 100) return `${trim(s.toPrecision(3))} s`;
    const d = Math.floor(s / 86400), hh = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
    return d ? `${d} d ${hh} h` : hh ? `${hh} h ${m} min` : `${m} min ${Math.floor(s % 60)} s`;
  }
  const percent = v => known(v) ? `${trim((100 * v).toPrecision(3))} %` : '–';

  // --- the data of a run -----------------------------------------------------------------------
  function unpack(text, wide) {
    const raw = atob(text), data = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) data[i] = raw.charCodeAt(i);
    return Array.from(wide ? new Float64Array(data.buffer) : new Float32Array(data.buffer));
  }
  class Series {
    constructor() { this.clear(); }
    clear() { this.rows = 0; this.stride = 1; this.mean = {}; this.least = {}; this.largest = {}; this.elapsed = []; }
    // Rows from block.at on are replaced. False: the block does not continue what is here.
    take(block) {
      if (block.at > this.rows || (block.at > 0 && block.stride !== this.stride)) return false;
      const at = block.at, count = block.rows - at;
      for (const name of new Set([...Object.keys(this.mean), ...Object.keys(block.columns)])) {
        const c = block.columns[name];
        let mean = new Array(count).fill(NaN), least = null, largest = null;
        if (c) {
          if ('c' in c) mean.fill(c.c);
          else if ('k' in c) mean = mean.map((_, i) => c.k + i * c.d);
          else mean = unpack(c.f || c.g, 'g' in c);
          if (c.l) { least = unpack(c.l); largest = unpack(c.h); }
        }
        const put = (to, values) => {
          const old = to[name] || new Array(at).fill(NaN);
          old.length = at;
          to[name] = old.concat(values);
        };
        put(this.mean, mean);
        if (block.stride > 1) { put(this.least, least || mean); put(this.largest, largest || mean); }
      }
      this.rows = block.rows;
      this.stride = block.stride;
      this.inLast = block.in_last;
      const seconds = this.mean.seconds;
      if (seconds) {
        this.elapsed.length = Math.min(at, this.elapsed.length);
        for (let i = this.elapsed.length; i < this.rows; i++)
          this.elapsed.push((i ? this.elapsed[i - 1] : 0) + (known(seconds[i]) ? seconds[i] * this.stride : 0));
      }
      return true;
    }
    x(axis) { return axis === 'time' ? this.elapsed : this.mean[axis] || this.mean.step || []; }
    last(name) {
      const v = this.mean[name];
      for (let i = this.rows - 1; v && i >= 0; i--) if (known(v[i])) return v[i];
      return NaN;
    }
    newest(name) { return this.rows && this.mean[name] ? this.mean[name][this.rows - 1] : NaN; }
    has(name) { return !!this.mean[name] && this.mean[name].some(known); }
  }
  class Run {
    constructor(index, folder) {
      this.index = index; this.folder = folder; this.colour = colourOf(index);
      this.steps = new Series(); this.evaluations = new Series();
      this.about = null; this.layout = null; this.trace = null; this.generation = -1; this.record = null;
      this.derived = {}; // what is computed from the steps, until there are more
    }
    takeSeries(s) {
      this.generation = s.generation;
      this.derived = {};
      this.steps.clear(); this.evaluations.clear();
      this.steps.take(s.steps); this.evaluations.take(s.evaluations);
    }
    takeNews(n) {
      this.derived = {};
      if (n.last) this.record = n.last;
      return n.generation === this.generation && this.steps.take(n.steps) && this.evaluations.take(n.evaluations);
    }
    takeAbout(a) {
      this.about = a;
      this.record = a.last || this.record;
      this.config = new Map(a.config || []);
    }
    get planned() { return Number(this.config && this.config.get('train.steps')) || NaN; }
    get step() { return this.record ? this.record.step : NaN; }
    get state() {
      const a = this.about;
      if (!a) return ['waiting', 'loading'];
      if (a.state === 'ended') return ['ended', (a.summary && a.summary.end) || 'ended'];
      return [a.state, a.state === 'waiting' ? 'no step yet' : a.state];
    }
    get memory() { return this.record ? this.record.gpu_bytes || this.record.resident || this.steps.last('memory') : NaN; }
    heldOut() {
      // of an evaluation, not interpolated
      const e = this.evaluations;
      return { step: e.last('step'), loss: e.last('loss'), tokens: e.last('tokens') };
    }
    smooth(series, name, a) {
      const id = `${series === this.steps ? 's' : 'e'}${name}${a}`;
      if (!this.derived[id]) {
        let s = 0, w = 0;
        this.derived[id] = series.mean[name].map(v => {
          if (!known(v)) return NaN;
          s = a * s + (1 - a) * v; w = a * w + (1 - a);
          return s / w;
        });
      }
      return this.derived[id];
    }
  }

  // --- state of the view -----------------------------------------------------------------------
  const view = {
    tab: 'curves', axis: 'step', smooth: 0, zoom: null, hover: null, hidden: new Set(), logs: new Set(),
    kind: 'optimizer', rank: -1, chosen: 0, filter: '', onlyDifferent: true, span: null,
  };
  let runs = [], plots = [], live = null, lost = false, leftOut = 0;
  const shown = () => runs.filter(r => !view.hidden.has(r.index));
  const chosen = () => runs[Math.min(view.chosen, runs.length - 1)];

  // --- tooltips --------------------------------------------------------------------------------
  const tip = $('tip');
  function showTip(event, ...kids) {
    tip.replaceChildren(...kids);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    let x = event.clientX + 16, y = event.clientY + 14;
    if (x + box.width > innerWidth - 8) x = event.clientX - box.width - 14;
    if (y + box.height > innerHeight - 8) y = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(6, x)}px`;
    tip.style.top = `${Math.max(6, y)}px`;
  }
  const hideTip = () => { tip.hidden = true; };
  const tipRow = (colour, name, value) => h('div', { class: 'r' }, colour && h('i', { class: 'dot', color: colour }), h('span', {}, name), h('em', {}, value));

  // --- drawing ---------------------------------------------------------------------------------
  const dirty = new Set();
  let frame = 0;
  function redraw(...what) {
    for (const w of what.length ? what : plots) dirty.add(w);
    if (!frame) frame = requestAnimationFrame(() => {
      const start = performance.now();
      frame = 0;
      for (const p of dirty) p.draw();
      dirty.clear();
      document.body.dataset.drawMs = (performance.now() - start).toFixed(1);
    });
  }
  // A canvas as large as its box, sharp on any screen.
  class Canvas {
    constructor(box) {
      this.box = box;
      this.canvas = h('canvas', { 'aria-hidden': 'true' });
      box.append(this.canvas);
      this.observer = new ResizeObserver(() => { if (box.clientWidth !== this.w || box.clientHeight !== this.h) redraw(this); });
      this.observer.observe(box);
    }
    begin(canvas = this.canvas) {
      const { clientWidth: w, clientHeight: hh } = this.box, ratio = devicePixelRatio || 1;
      if (!w || !hh) return null;
      if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(hh * ratio)) {
        canvas.width = Math.round(w * ratio);
        canvas.height = Math.round(hh * ratio);
      }
      const g = canvas.getContext('2d');
      g.setTransform(ratio, 0, 0, ratio, 0, 0);
      g.clearRect(0, 0, w, hh);
      g.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
      this.w = w; this.h = hh;
      return g;
    }
  }
  function ticks(lo, hi, most) {
    if (!(hi > lo)) return [lo];
    const raw = (hi - lo) / most, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
    const out = [];
    for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) out.push(i * step);
    return out;
  }
  function logTicks(lo, hi) {
    const out = [];
    for (let p = Math.floor(Math.log10(lo)); p <= Math.ceil(Math.log10(hi)); p++)
      for (const m of hi / lo > 100 ? [1] : [1, 2, 5]) {
        const v = m * 10 ** p;
        if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v);
      }
    return out.length > 1 ? out : ticks(lo, hi, 4);
  }
  // The first index whose value is at least x, in sorted values.
  function lower(values, x) {
    let a = 0, b = values.length;
    while (a < b) { const m = (a + b) >> 1; if (values[m] < x) a = m + 1; else b = m; }
    return a;
  }
  function nearest(values, x) {
    const i = lower(values, x);
    return i > 0 && (i === values.length || x - values[i - 1] < values[i] - x) ? i - 1 : i;
  }

  const axisWord = v => view.axis === 'time' ? duration(v) : short(v);

  // One figure over steps, of all runs that are shown.
  class Plot extends Canvas {
    constructor(spec) {
      const box = h('div', { class: 'plot', role: 'img', 'aria-label': `${spec.title} over ${view.axis}` });
      super(box);
      this.spec = spec;
      // What follows the pointer is drawn over the curves, which then need not be drawn again.
      this.over = h('canvas', { 'aria-hidden': 'true' });
      this.pointer = { draw: () => this.drawHover() };
      box.append(this.over);
      this.now = h('span', { class: 'now' });
      this.log = h('button', { title: 'logarithmic scale', 'aria-pressed': view.logs.has(spec.key), onclick: () => this.toggleLog() }, 'log');
      this.card = h('section', { class: spec.full ? 'card full' : 'card' }, h('h2', {}, spec.title, this.log, this.now), box);
      box.addEventListener('pointermove', e => this.move(e));
      box.addEventListener('pointerleave', () => { view.hover = null; this.drag = null; hideTip(); followPointer(); });
      box.addEventListener('pointerdown', e => { if (e.pointerType === 'mouse' && e.button === 0) { this.drag = [e.offsetX, e.offsetX]; box.setPointerCapture(e.pointerId); } });
      box.addEventListener('pointerup', () => this.release());
      box.addEventListener('dblclick', () => setZoom(null));
    }
    toggleLog() {
      const key = this.spec.key;
      if (!view.logs.delete(key)) view.logs.add(key);
      this.log.setAttribute('aria-pressed', view.logs.has(key));
      redraw(this);
    }
    lines() {
      const out = [];
      for (const run of shown()) {
        const s = run.steps, name = this.spec.key;
        if (s.mean[name]) {
          const smooth = view.smooth > 0 && this.spec.smooth;
          out.push({ run, series: s, xs: s.x(view.axis), ys: s.mean[name], least: s.least[name], largest: s.largest[name], pale: smooth, name: this.spec.title });
          if (smooth) out.push({ run, series: s, xs: s.x(view.axis), ys: run.smooth(s, name, view.smooth), name: 'smoothed', extra: true });
        }
        const e = run.evaluations;
        if (this.spec.heldOut && e.rows) {
          const steps = s.mean.step || [], sx = s.x(view.axis);
          const xs = view.axis === 'step' ? e.mean.step : e.mean.step.map(v => sx[Math.min(nearest(steps, v), sx.length - 1)]);
          out.push({ run, series: e, xs, ys: e.mean.loss, dots: true, name: 'held-out' });
        }
      }
      return out;
    }
    range(lines) {
      let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
      for (const l of lines) if (l.xs.length) { x0 = Math.min(x0, l.xs[0]); x1 = Math.max(x1, l.xs[l.xs.length - 1]); }
      if (view.zoom) [x0, x1] = view.zoom;
      for (const l of lines) {
        l.first = Math.max(0, lower(l.xs, x0) - 1);
        l.last = Math.min(l.xs.length, lower(l.xs, x1) + 2);
        if (l.pale && l.last - l.first > 20) continue; // the smoothed line decides
        for (let i = l.first; i < l.last; i++) {
          const v = l.ys[i];
          if (known(v) && (!view.logs.has(this.spec.key) || v > 0)) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
        }
      }
      if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
      if (this.spec.zero && !view.logs.has(this.spec.key)) y0 = Math.min(0, y0);
      if (y0 === y1) { const d = Math.abs(y0) * 0.05 || 1; y0 -= d; y1 += d; }
      return { x0, x1, y0, y1 };
    }
    draw() {
      const g = this.begin();
      if (!g) return;
      const lines = this.lines(), r = this.range(lines), log = view.logs.has(this.spec.key);
      const format = this.spec.format || short;
      const left = 54, right = 8, top = 8, bottom = 22, w = this.w - left - right, hh = this.h - top - bottom;
      if (!(r.x1 > r.x0) || !(r.y1 > r.y0)) return;
      const pad = log ? 0 : (r.y1 - r.y0) * 0.04, f = log ? Math.log : v => v;
      const lo = f(log ? r.y0 * 0.98 : r.y0 - (this.spec.zero && r.y0 === 0 ? 0 : pad)), hi = f(log ? r.y1 * 1.02 : r.y1 + pad);
      const X = v => left + (v - r.x0) / (r.x1 - r.x0) * w, Y = v => top + (1 - (f(v) - lo) / (hi - lo)) * hh;
      Object.assign(this, { r, X, left, right, plotW: w });
      const soft = css('--soft'), line = css('--line');
      g.fillStyle = soft; g.strokeStyle = line; g.lineWidth = 1;
      g.textAlign = 'right'; g.textBaseline = 'middle';
      for (const t of log ? logTicks(r.y0, r.y1) : ticks(r.y0, r.y1, hh > 220 ? 6 : 3)) {
        const y = Math.round(Y(t)) + 0.5;
        if (y < top - 1 || y > top + hh + 1) continue;
        g.beginPath(); g.moveTo(left, y); g.lineTo(left + w, y); g.stroke();
        g.fillText(format(t), left - 8, y);
      }
      g.textBaseline = 'alphabetic';
      for (const t of ticks(r.x0, r.x1, Math.max(3, Math.floor(w / 90)))) {
        const x = X(t);
        if (x < left - 1 || x > left + w + 1) continue;
        g.textAlign = x > left + w - 24 ? 'right' : x < left + 12 ? 'left' : 'center';
        g.fillText(axisWord(t), x, this.h - 6);
      }
      g.save();
      g.beginPath(); g.rect(left - 4, top - 4, w + 8, hh + 8); g.clip();
      for (const l of lines) this.drawLine(g, l, X, Y, w);
      if (this.spec.full) this.drawCheckpoints(g, X, top + hh);
      g.restore();
      this.drawn = { lines, X, Y, top, hh, left, w };
      this.drawHover();
    }
    drawLine(g, l, X, Y, w) {
      const { xs, ys, first, last } = l;
      g.strokeStyle = g.fillStyle = l.run.colour;
      if (l.least && !l.extra) {
        g.globalAlpha = 0.16;
        g.beginPath();
        for (let i = first; i < last; i++) if (known(l.largest[i])) g.lineTo(X(xs[i]), Y(l.largest[i]));
        for (let i = last - 1; i >= first; i--) if (known(l.least[i])) g.lineTo(X(xs[i]), Y(l.least[i]));
        g.fill();
      }
      g.globalAlpha = l.pale ? 0.28 : 1;
      g.lineWidth = l.dots ? 1.2 : 1.6;
      g.lineJoin = 'round';
      g.setLineDash(l.dots ? [4, 3] : []);
      g.beginPath();
      const dense = last - first > 3 * w;
      if (dense) { // per pixel: the extent of its values and of the way to them, as a rectangle
        let px = NaN, least = 0, most = 0, leave = NaN;
        const flush = () => { const y = Y(most); g.rect(px - 0.6, y - 0.8, 1.2, Y(least) - y + 1.6); };
        for (let i = first; i < last; i++) {
          const v = ys[i];
          if (!known(v)) continue;
          const x = Math.round(X(xs[i]));
          if (x !== px) {
            if (px === px) flush();
            px = x;
            least = leave < v ? leave : v;
            most = leave > v ? leave : v;
          }
          if (v < least) least = v; else if (v > most) most = v;
          leave = v;
        }
        if (px === px) flush();
        g.fill();
      } else {
        let pen = false;
        for (let i = first; i < last; i++) {
          if (!known(ys[i])) { pen = false; continue; }
          if (pen) g.lineTo(X(xs[i]), Y(ys[i])); else g.moveTo(X(xs[i]), Y(ys[i]));
          pen = true;
        }
        g.stroke();
      }
      g.setLineDash([]);
      if (l.dots && last - first < 200) for (let i = first; i < last; i++) if (known(ys[i])) dot(g, X(xs[i]), Y(ys[i]), 2.6, true);
      if (last - first === 1 && known(ys[first])) dot(g, X(xs[first]), Y(ys[first]), 3);
      g.globalAlpha = 1;
    }
    drawCheckpoints(g, X, y) {
      for (const run of shown()) {
        const steps = run.steps.mean.step || [], xs = run.steps.x(view.axis);
        g.fillStyle = run.colour;
        for (const c of (run.about && run.about.checkpoints) || []) {
          const x = X(xs[Math.min(nearest(steps, c), xs.length - 1)]);
          g.beginPath(); g.moveTo(x - 4, y + 1); g.lineTo(x + 4, y + 1); g.lineTo(x, y - 6); g.fill();
        }
      }
    }
    drawHover() {
      const g = this.drawn && this.begin(this.over);
      if (!g) return;
      const { lines, X, Y, top, hh, left, w } = this.drawn;
      if (this.drag && Math.abs(this.drag[1] - this.drag[0]) > 4) {
        g.fillStyle = css('--accent'); g.globalAlpha = 0.12;
        g.fillRect(Math.min(...this.drag), top, Math.abs(this.drag[1] - this.drag[0]), hh);
        g.globalAlpha = 1;
      }
      if (view.hover == null) return;
      g.strokeStyle = css('--faint'); g.lineWidth = 1;
      const x = Math.round(X(view.hover)) + 0.5;
      if (x < left - 1 || x > left + w + 1) return;
      g.beginPath(); g.moveTo(x, top); g.lineTo(x, top + hh); g.stroke();
      for (const l of lines) {
        const i = nearest(l.xs, view.hover);
        if (l.dots || l.pale || !known(l.ys[i])) continue;
        g.fillStyle = l.run.colour;
        dot(g, X(l.xs[i]), Y(l.ys[i]), 3.2);
      }
    }
    move(e) {
      if (!this.r) return;
      if (this.drag) this.drag[1] = e.offsetX;
      view.hover = this.r.x0 + (e.offsetX - this.left) / this.plotW * (this.r.x1 - this.r.x0);
      const rows = [], format = this.spec.exact || exact;
      let title = '';
      for (const l of this.lines()) {
        const i = nearest(l.xs, view.hover);
        if (!known(l.ys[i])) continue;
        const name = runs.length > 1 ? `${l.run.name} ${l.name === this.spec.title ? '' : l.name}` : l.name;
        const range = l.least && !l.extra && l.least[i] < l.largest[i] ? `  (${format(l.least[i])} … ${format(l.largest[i])})` : '';
        rows.push(tipRow(l.run.colour, name, (l.extra ? short(l.ys[i]) : format(l.ys[i])) + range));
        if (l.dots) rows[rows.length - 1].append(h('span', { class: 'soft' }, `at ${axisWord(l.xs[i])}`));
        else if (!title && l.series.mean.step) {
          const s = l.series, a = s.least.step ? s.least.step[i] : s.mean.step[i], b = s.least.step ? s.largest.step[i] : a;
          title = a === b ? `step ${exact(a)}` : `mean of steps ${exact(a)} to ${exact(b)}`;
          if (view.axis === 'tokens') title += `, ${short(s.mean.tokens[i])} tokens`;
          if (s.elapsed.length) title += `, ${duration(s.elapsed[i])}`;
        }
      }
      if (rows.length) showTip(e, h('div', { class: 'soft' }, title), ...rows); else hideTip();
      followPointer();
    }
    release() {
      const d = this.drag;
      this.drag = null;
      if (!d || !this.r || Math.abs(d[1] - d[0]) < 6) return redraw(this);
      const at = p => this.r.x0 + (p - this.left) / this.plotW * (this.r.x1 - this.r.x0);
      setZoom([at(Math.min(...d)), at(Math.max(...d))]);
    }
    update() {
      const one = shown().length === 1 ? shown()[0] : null;
      this.now.textContent = one ? (this.spec.format || short)(one.steps.last(this.spec.key)) : '';
    }
  }
  function dot(g, x, y, r, hollow) {
    g.beginPath(); g.arc(x, y, r, 0, 7);
    if (hollow) { const c = g.fillStyle; g.fillStyle = css('--sheet'); g.fill(); g.fillStyle = c; g.stroke(); } else g.fill();
  }
  const followPointer = () => redraw(...plots.map(p => p.pointer).filter(Boolean));
  function setZoom(zoom) {
    view.zoom = zoom && zoom[1] > zoom[0] ? zoom : null;
    redraw();
  }

  // --- curves ----------------------------------------------------------------------------------
  const FIGURES = [
    { key: 'loss', title: 'loss', full: true, heldOut: true, smooth: true },
    { key: 'grad_norm', title: 'gradient norm', smooth: true },
    { key: 'lr', title: 'learning rate', zero: true },
    { key: 'tokens_per_second', title: 'tokens per second', zero: true, smooth: true },
    { key: 'seconds', title: 'time of a step', format: duration, zero: true, smooth: true },
    { key: 'mfu', title: 'MFU', format: percent, exact: percent, zero: true, smooth: true },
    { key: 'hidden', title: 'communication hidden', format: percent, exact: percent, zero: true, smooth: true },
    { key: 'noise_scale', title: 'gradient noise scale', smooth: true },
    { key: 'batch', title: 'sequences per step', zero: true },
    { key: 'loss_scale', title: 'loss scale' },
    { key: 'resident', title: 'memory of the process, rank 0', format: bytes, exact: bytes, zero: true },
    { key: 'gpu_bytes', title: 'GPU memory in use', format: bytes, exact: bytes, zero: true },
    { key: 'clock_mhz', title: 'GPU clock, MHz' },
    { key: 'power_w', title: 'GPU power, W', zero: true },
    { key: 'temperature_c', title: 'GPU temperature, °C' },
  ];
  const ALWAYS = new Set(['loss', 'grad_norm', 'lr', 'tokens_per_second']);
  const varies = (run, key) => run.steps.has(key) && (key !== 'batch' || new Set(run.steps.mean[key]).size > 1);

  const stat = (name, value, note, bar) => h('div', { class: 'stat' }, h('div', { class: 'name' }, name),
    h('div', { class: 'value' }, value, note && h('small', {}, note)),
    bar != null && h('div', { class: 'bar' }, (() => { const i = h('i'); i.style.width = `${Math.min(100, 100 * bar)}%`; return i; })()));

  function statsOf(run) {
    const s = run.steps, held = run.heldOut(), left = (run.planned - run.step) * meanOfLast(s, 'seconds');
    const out = [stat('step', exact(run.step), known(run.planned) ? `of ${exact(run.planned)}` : '', known(run.planned) ? run.step / run.planned : null),
      stat('loss', s.rows && !known(s.newest('loss')) ? 'not finite' : short(s.newest('loss')))];
    if (known(held.loss)) out.push(stat('held-out loss', short(held.loss), `step ${exact(Math.round(held.step))}`));
    const usual = name => median(run, name, timed([run], run));
    out.push(stat('tokens per second', short(usual('tokens_per_second')), 'median'));
    if (s.has('mfu')) out.push(stat('MFU', percent(usual('mfu')), 'median'));
    if (s.has('hidden')) out.push(stat('communication hidden', percent(usual('hidden')), 'median'));
    if (known(run.memory)) out.push(stat('memory', bytes(run.memory), run.about && run.about.ranks > 1 ? 'rank 0' : ''));
    if (run.state[0] === 'running' && left > 0) out.push(stat('time left', duration(left)));
    else if (s.elapsed.length) out.push(stat('time in steps', duration(s.elapsed[s.elapsed.length - 1])));
    return out;
  }
  function meanOfLast(series, name) {
    const v = (series.mean[name] || []).slice(-20).filter(known);
    return v.length ? v.reduce((a, b) => a + b) / v.length : NaN;
  }
  // Figures of speed are medians over the rows that `sifr compare` uses (compare_time): those of the
  // steps that all runs have, without the first of any; if they are fewer than three, all of the run
  // but its first.
  function timed(among, run) {
    const step = run.steps.mean.step || [], n = step.length;
    const begun = among.filter(r => r.steps.rows), first = Math.max(...begun.map(r => r.steps.mean.step[0]));
    const last = Math.min(...begun.map(r => r.steps.mean.step[r.steps.rows - 1]));
    let from = 0, to = n;
    while (from < n && step[from] <= first) from++;
    while (to > from && step[to - 1] > last) to--;
    return to - from < 3 ? [n > 3 ? 1 : 0, n] : [from, to];
  }
  function median(run, name, [from, to]) {
    return run.derived[`median ${name} ${from} ${to}`] ??= medianOf((run.steps.mean[name] || []).slice(from, to));
  }
  function medianOf(values) {
    const v = Float64Array.from(values.filter(known)).sort(), half = v.length >> 1;
    return !v.length ? NaN : v.length % 2 ? v[half] : (v[half - 1] + v[half]) / 2;
  }
  const cell = (text, best) => h('td', { class: 'n' }, best ? h('b', {}, text) : text);
  function compareTable() {
    const rows = shown(), ranges = new Map(rows.map(r => [r, timed(rows, r)])), usual = (r, name) => median(r, name, ranges.get(r));
    const parallel = rows.some(r => r.about && r.about.ranks > 1), columns = [
      ['ranks', r => parallel ? r.about && r.about.ranks : NaN, exact, 0], ['step', r => r.step, exact, 0], ['loss', r => r.steps.last('loss'), short, -1], ['held-out loss', r => r.heldOut().loss, short, -1],
      ['tokens per second', r => usual(r, 'tokens_per_second'), short, 1], ['MFU', r => usual(r, 'mfu'), percent, 1],
      ['hidden', r => usual(r, 'hidden'), percent, 1], ['memory', r => r.memory, bytes, -1], ['time in steps', r => r.steps.elapsed[r.steps.elapsed.length - 1], duration, 0],
    ].filter(c => rows.some(r => known(c[1](r)))); // speed: medians, as in statsOf
    const values = columns.map(c => rows.map(c[1])), tokens = rows.map(r => r.heldOut().tokens).filter(known);
    return h('section', { class: 'card full scroll' }, h('table', {},
      h('tr', {}, h('th', {}, 'run'), h('th', {}, 'state'), columns.map(c => h('th', { class: 'n' }, c[0]))),
      rows.map((r, i) => h('tr', {}, h('td', {}, h('i', { class: 'dot', color: r.colour }), ' ', r.name), h('td', { class: `state ${r.state[0]}` }, r.state[1]),
        columns.map(([, , format, sign], c) => {
          const all = values[c].filter(known), v = values[c][i];
          return cell(format(v), sign && new Set(all).size > 1 && known(v) && v === (sign > 0 ? Math.max(...all) : Math.min(...all)));
        })))),
      new Set(tokens).size > 1 && h('p', {}, `Held-out losses are of different amounts of data: ${rows.filter(r => known(r.heldOut().tokens)).map(r => `${r.name} ${exact(r.heldOut().tokens)}`).join(', ')} tokens. To compare them, run with train.eval_batches=0, or with the same train.eval_batches times train.micro_batch.`));
  }
  const curves = {
    title: 'Curves',
    build(main) {
      this.stats = h('div', {});
      this.grid = h('div', { class: 'grid' });
      this.keys = '';
      main.append(this.stats, this.grid);
      this.update();
    },
    update() {
      const many = shown().length > 1;
      this.stats.className = many ? 'grid' : 'stats';
      this.stats.replaceChildren(...(many ? [compareTable(), h('span')] : shown().flatMap(statsOf)));
      const figures = FIGURES.filter(f => ALWAYS.has(f.key) || shown().some(r => varies(r, f.key)));
      const keys = figures.map(f => f.key).join();
      if (keys !== this.keys) {
        this.keys = keys;
        plots.forEach(p => p.observer.disconnect());
        plots = figures.map(f => new Plot(f));
        this.grid.replaceChildren(...plots.map(p => p.card));
      }
      plots.forEach(p => p.update());
      redraw();
    },
  };

  // --- memory ----------------------------------------------------------------------------------
  const CATEGORY_COLOURS = ['#3f6fd8', '#e2832b', '#2f9e6e', '#c6458b', '#8a63d2', '#c9a227', '#2aa5b8', '#d2554a', '#7d8b99', '#9b8575', '#5aa469', '#b06ab3'];
  class Stacks extends Canvas { // a column per rank
    constructor(box, names, ranks) {
      super(box);
      this.names = names; this.ranks = ranks;
      box.addEventListener('pointermove', e => this.move(e));
      box.addEventListener('pointerleave', hideTip);
    }
    draw() {
      const g = this.begin();
      if (!g) return;
      const most = Math.max(...this.ranks.map(r => r.total)), left = 70, bottom = 20, top = 8, n = this.ranks.length;
      const w = (this.w - left) / n, bar = Math.min(64, Math.max(1, w * 0.72)), hh = this.h - top - bottom;
      this.left = left; this.each = w;
      g.fillStyle = css('--soft'); g.strokeStyle = css('--line'); g.textAlign = 'right'; g.textBaseline = 'middle';
      for (const t of [0, 0.5, 1]) {
        const y = Math.round(top + (1 - t) * hh) + 0.5;
        g.beginPath(); g.moveTo(left, y); g.lineTo(this.w, y); g.stroke();
        g.fillText(bytes(Math.round(t * most)), left - 8, y);
      }
      g.textAlign = 'center'; g.textBaseline = 'alphabetic';
      const skip = Math.ceil(26 / w);
      this.ranks.forEach((r, i) => {
        let y = top + hh;
        r.bytes.forEach((b, c) => {
          const d = b / most * hh;
          g.fillStyle = CATEGORY_COLOURS[c % CATEGORY_COLOURS.length];
          g.fillRect(left + i * w + (w - bar) / 2, y - d, bar, d);
          y -= d;
        });
        g.fillStyle = css('--soft');
        if (i % skip === 0) g.fillText(r.rank, left + (i + 0.5) * w, this.h - 5);
      });
    }
    move(e) {
      const r = this.ranks[Math.floor((e.offsetX - this.left) / this.each)];
      if (!r) return hideTip();
      showTip(e, h('div', {}, h('b', {}, `rank ${r.rank}${r.worker ? '' : ', a server'}`), `  ${bytes(r.total)}`),
        ...r.bytes.map((b, c) => b > 0 && tipRow(CATEGORY_COLOURS[c % CATEGORY_COLOURS.length], this.names[c], `${bytes(b)}  (${b.toLocaleString('en')})`)).filter(Boolean),
        ...(r.host ? [tipRow(null, 'on the host', bytes(r.host))] : []), ...(r.disk ? [tipRow(null, 'on disk', bytes(r.disk))] : []));
    }
  }
  function runPicker(change) {
    if (runs.length < 2) return null;
    return h('div', { class: 'choice', role: 'group', 'aria-label': 'run' }, runs.map(r =>
      h('button', { 'aria-pressed': r === chosen(), onclick: () => { view.chosen = r.index; change(); } }, r.name)));
  }
  const swatch = (colour, name) => h('span', {}, h('i', { class: 'sw', color: colour }), name);
  const emptyNote = text => h('p', { class: 'empty' }, text);

  const memory = {
    title: 'Memory',
    build(main) { this.main = main; this.seen = null; this.update(); },
    update() {
      const run = chosen(), mem = run.record && run.record.mem, id = JSON.stringify([run.index, mem, run.record && run.record.resident, !!run.layout]);
      if (id === this.seen) return;
      this.seen = id;
      const parts = [h('div', { class: 'row' }, runPicker(show))];
      if (!mem) return this.main.replaceChildren(...parts, emptyNote('No step has been recorded yet.'));
      const names = Object.keys(mem), total = names.reduce((s, n) => s + mem[n], 0);
      const grid = h('div', { class: 'grid' });
      const layout = run.layout && !run.layout.error ? run.layout : null;
      if (layout) {
        const box = h('div', { class: 'plot' });
        grid.append(h('section', { class: 'card full' }, h('h2', {}, `memory by rank and category, planned for ${layout.ranks} rank${layout.ranks > 1 ? 's' : ''}`),
          box, h('div', { class: 'key' }, layout.categories.map((c, i) => layout.memory.some(m => m.bytes[i] > 0) && swatch(CATEGORY_COLOURS[i % CATEGORY_COLOURS.length], c)))));
        plots = [new Stacks(box, layout.categories, layout.memory.map(m => ({ ...m, total: m.bytes.reduce((a, b) => a + b, 0) })))];
      }
      grid.append(h('section', { class: 'card scroll' }, h('h2', {}, known(run.record.mem_rank) ? `allocated on rank ${run.record.mem_rank}, the most of all ranks` : 'allocated by the run'),
        h('table', {}, h('tr', {}, h('th', {}, 'category'), h('th', { class: 'n' }, 'size'), h('th', { class: 'n' }, 'bytes'), h('th', { class: 'n' }, 'share')),
          names.filter(n => mem[n] > 0).sort((a, b) => mem[b] - mem[a]).map(n => h('tr', {}, h('td', {}, n), cell(bytes(mem[n])), cell(mem[n].toLocaleString('en')), cell(percent(mem[n] / total)))),
          h('tr', {}, h('td', {}, h('b', {}, 'all')), cell(bytes(total), true), cell(total.toLocaleString('en')), cell('')))));
      const rest = [['resident', 'the process of rank 0'], ['gpu_bytes', 'in use on its GPU'], ['host_bytes', 'on the host'], ['disk_bytes', 'files that stand for memory']].filter(([k]) => run.record[k] > 0);
      if (rest.length) grid.append(h('section', { class: 'card' }, h('h2', {}, 'as the system counts'), h('table', {}, rest.map(([k, w]) => h('tr', {}, h('td', {}, w), cell(bytes(run.record[k])), cell(run.record[k].toLocaleString('en')))))));
      this.main.replaceChildren(...parts, grid);
      redraw();
    },
  };

  // --- layout ----------------------------------------------------------------------------------
  // Pieces of the model, each a bar divided into shards; below it, its tensors.
  const ROW = 40, BAR = 14;
  class Shards extends Canvas {
    constructor(box, layout, stage) {
      super(box);
      this.layout = layout; this.stage = stage;
      box.style.height = `${stage.pieces.length * ROW + 6}px`;
      box.addEventListener('pointermove', e => this.move(e));
      box.addEventListener('pointerleave', hideTip);
    }
    // The ranks that hold shard k, of the TP rank t.
    holders(k, t) {
      const { pp, tp, ranks } = this.layout, s = this.stage, out = [];
      if (!this.sharded()) return [...Array(ranks).keys()].filter(r => Math.floor(r / tp) % pp === s.p && r % tp === t);
      for (let o = k; o < s.owners; o += s.shards) out.push(((s.first_owner + o) * pp + s.p) * tp + t);
      return out;
    }
    sharded() { return this.layout.sharded[view.kind]; }
    draw() {
      const g = this.begin();
      if (!g) return;
      const { tp, ranks } = this.layout, s = this.stage, shards = this.sharded() ? s.shards : 1;
      const left = Math.min(150, this.w * 0.3), w = this.w - left - 2, most = Math.max(...s.pieces.map(p => p.count));
      this.left = left;
      s.pieces.forEach((p, i) => {
        const y = i * ROW + 6, pw = this.width = w * Math.sqrt(p.count / most);
        g.fillStyle = css('--soft'); g.textAlign = 'right'; g.textBaseline = 'middle';
        g.fillText(p.name.length > 22 ? `${p.name.slice(0, 21)}…` : p.name, left - 12, y + BAR / 2);
        for (let t = 0; t < tp; t++) for (let k = 0; k < shards; k++) {
          const holders = this.holders(k, t), lit = view.rank < 0 || holders.includes(view.rank);
          g.globalAlpha = lit ? 1 : 0.13;
          g.fillStyle = this.sharded() || view.rank >= 0 ? rankColour(view.rank >= 0 && lit ? view.rank : holders[0], ranks) : css('--faint');
          const x = left + pw * k / shards, gap = pw / shards > 3 ? 1 : 0;
          g.fillRect(x, y + t * BAR / tp, Math.max(0.5, pw / shards - gap), BAR / tp - (tp > 1 && BAR / tp > 3 ? 1 : 0));
        }
        g.globalAlpha = 1;
        p.tensors.forEach(([, first, count], j) => {
          g.fillStyle = css(j % 2 ? '--faint' : '--soft');
          g.globalAlpha = 0.55;
          g.fillRect(left + pw * first / p.count, y + BAR + 3, Math.max(0.7, pw * count / p.count - 0.7), 4);
        });
        g.globalAlpha = 1;
      });
    }
    move(e) {
      const s = this.stage, p = s.pieces[Math.floor(e.offsetY / ROW)];
      if (!p || !this.left) return hideTip();
      const w = (this.w - this.left - 2) * Math.sqrt(p.count / Math.max(...s.pieces.map(q => q.count))), at = (e.offsetX - this.left) / w * p.count;
      if (at < 0 || at >= p.count) return hideTip();
      const shards = this.sharded() ? s.shards : 1, k = Math.floor(at / p.count * shards), tp = this.layout.tp;
      const t = Math.max(0, Math.min(tp - 1, Math.floor((e.offsetY % ROW - 6) / (BAR / tp))));
      const holders = this.holders(k, t), tensor = p.tensors.find(([, first, count]) => at >= first && at < first + count);
      const list = holders.length > 8 ? `${holders.slice(0, 7).join(', ')} … (${holders.length} ranks)` : holders.join(', ');
      const from = Math.round(k * p.count / shards), to = Math.round((k + 1) * p.count / shards);
      showTip(e, h('div', {}, h('b', {}, p.name), `  ${exact(p.count)} elements`),
        tipRow(this.sharded() ? rankColour(holders[0], this.layout.ranks) : null, shards > 1 ? `shard ${k} of ${shards}: rank ${list}` : `whole on rank ${list}`, `${exact(from)} … ${exact(to - 1)}`),
        tensor ? h('div', { class: 'soft mono' }, `${tensor[0]} [${tensor[3].join(', ')}]`) : h('div', { class: 'soft' }, 'padding'),
        tensor ? h('div', { class: 'soft' }, heldBy(this, p, tensor, shards)) : '');
    }
  }
  function heldBy(shards, piece, [, first, count], n) {
    const a = Math.floor(first / piece.count * n), b = Math.floor((first + count - 1) / piece.count * n);
    return n === 1 ? '' : a === b ? `the whole tensor is in shard ${a}` : `the tensor is spread over shards ${a} to ${b}`;
  }
  const KINDS = [['params', 'parameters'], ['grads', 'gradients'], ['optimizer', 'optimizer state']];
  function layoutWords(l) {
    const parts = KINDS.filter(([k]) => l.sharded[k]).map(([, w]) => w), dp = l.ranks / l.pp / l.tp;
    let text = `${l.ranks} rank${l.ranks > 1 ? 's' : ''}${l.pp * l.tp > 1 ? ` = ${dp} data × ${l.pp} pipeline × ${l.tp} tensor` : ''}, ZeRO stage ${l.stage}: `;
    text += dp === 1 ? 'one rank of each part, so nothing is shared out. ' : parts.length ? `each rank stores one part of ${parts.join(', ').replace(/, ([^,]*)$/, ' and $1')}. ` : 'every rank stores everything. ';
    if (l.servers) text += `The last ${l.servers} rank${l.servers > 1 ? 's are servers: they hold' : ' is a server: it holds'} the shards and compute${l.servers > 1 ? '' : 's'} nothing. `;
    if (l.sharded.params && dp > 1) text += 'Before a unit computes, the parts of its parameters are gathered; after its backward pass, its gradient is summed where its shard is stored, and each rank updates its own shard.';
    else if (dp > 1) text += 'Gradients are summed after the backward pass of each unit; the updated parameters are sent to all ranks.';
    return text;
  }
  const layoutTab = {
    title: 'Layout',
    build(main) { this.main = main; this.seen = null; this.update(); },
    update() {
      const run = chosen(), l = run.layout, id = `${run.index}${l ? JSON.stringify(l).length : ''}${view.kind}`;
      if (id === this.seen) return;
      this.seen = id;
      plots = [];
      const head = h('div', { class: 'row' }, runPicker(show));
      if (!l) return this.main.replaceChildren(head, emptyNote('The layout is known after the first step.'));
      if (l.error) return this.main.replaceChildren(head, emptyNote(`The layout cannot be computed: ${l.error}`));
      head.append(h('div', { class: 'choice', role: 'group', 'aria-label': 'what is drawn' }, KINDS.map(([k, w]) =>
        h('button', { 'aria-pressed': view.kind === k, onclick: () => { view.kind = k; show(); } }, w))));
      const ranks = [...Array(l.ranks).keys()].slice(0, 128);
      const grid = h('div', { class: 'grid' }, h('section', { class: 'card full' }, h('h2', {}, 'who holds what'), h('p', {}, layoutWords(l)),
        h('div', { class: 'key' }, ranks.map(r => h('button', { 'aria-pressed': view.rank === r, title: 'show what this rank holds', onclick: e => {
          view.rank = view.rank === r ? -1 : r;
          for (const b of e.currentTarget.parentNode.children) b.setAttribute('aria-pressed', b === e.currentTarget && view.rank === r);
          redraw();
        } }, h('i', { class: 'sw', color: rankColour(r, l.ranks) }), `rank ${r}`)))));
      for (const stage of l.stages) {
        const box = h('div', { class: 'draw' });
        grid.append(h('section', { class: 'card full' }, h('h2', {}, l.pp > 1 ? `pipeline stage ${stage.p}` : 'pieces of the model, in the order of the forward pass'),
          stage === l.stages[0] && h('p', {}, 'A piece is gathered and reduced as one range; the thin line below it shows its tensors. Widths grow with the square root of the size.'), box));
        plots.push(new Shards(box, l, stage));
      }
      const sent = Object.entries(l.sent).filter(([, v]) => v[0] > 0 || v[1] > 0);
      if (sent.length) grid.append(h('section', { class: 'card scroll' }, h('h2', {}, 'what rank 0 sends in a step'), h('table', {},
        h('tr', {}, h('th', {}, 'purpose'), h('th', { class: 'n' }, 'calls'), h('th', { class: 'n' }, 'sent'), h('th', { class: 'n' }, 'bytes')),
        sent.map(([k, v]) => h('tr', {}, h('td', {}, k), cell(exact(v[1])), cell(bytes(v[0])), cell(exact(v[0])))))));
      this.main.replaceChildren(head, grid);
      redraw();
    },
  };

  // --- a traced step -----------------------------------------------------------------------------
  const laneColour = (lane, name) => name === 'wait' ? '#d98a80' : /^(gather|publish)/.test(name) ? '#2aa5b8' : /^reduce/.test(name) ? '#e2832b' : lane === 'host' ? '#8d8a83'
    : /\b(backward|loss)/.test(name) ? '#6d5bd0' : /\b(forward|rebuild)/.test(name) ? '#3f6fd8' : /\b(update|judge)/.test(name) ? '#2f9e6e' : '#a97fc4';
  class Timeline extends Canvas {
    constructor(box, trace) {
      super(box);
      this.trace = trace;
      this.rows = [];
      for (const r of trace.ranks) {
        const used = new Set();
        for (let i = 0; i < r.spans.length; i += 5) used.add(r.spans[i]);
        [...used].sort((a, b) => a - b).forEach((lane, i) => this.rows.push({ rank: r, lane, name: r.lanes[lane] || '', first: i === 0 }));
      }
      this.each = this.rows.length > 90 ? 5 : this.rows.length > 40 ? 9 : 17;
      box.style.height = `${this.rows.length * this.each + trace.ranks.length * 7 + 26}px`;
      box.addEventListener('pointermove', e => this.move(e));
      box.addEventListener('pointerleave', () => { this.pan = null; hideTip(); });
      box.addEventListener('pointerdown', e => { if (e.pointerType === 'mouse') { this.pan = e.offsetX; box.setPointerCapture(e.pointerId); } });
      box.addEventListener('pointerup', () => { this.pan = null; });
      box.addEventListener('dblclick', () => { view.span = null; redraw(this); });
      box.addEventListener('wheel', e => { if (e.ctrlKey || e.metaKey || e.shiftKey) { e.preventDefault(); this.zoom(e.deltaY + e.deltaX > 0 ? 1.25 : 0.8, e.offsetX); } }, { passive: false });
    }
    range() { return view.span || [0, this.trace.length]; }
    zoom(factor, x = this.w / 2) {
      const [a, b] = this.range(), at = a + (x - this.left) / (this.w - this.left) * (b - a);
      this.set(at - (at - a) * factor, at + (b - at) * factor);
    }
    shift(share) { const [a, b] = this.range(), d = (b - a) * share; this.set(a + d, b + d); }
    set(a, b) {
      const n = this.trace.length;
      if (b - a >= n) view.span = null;
      else { if (a < 0) { b -= a; a = 0; } if (b > n) { a -= b - n; b = n; } view.span = [a, Math.max(b, a + 1)]; }
      redraw(this);
    }
    draw() {
      const g = this.begin();
      if (!g) return;
      const left = this.left = 104, w = this.w - left - 4, [a, b] = this.range(), X = t => left + (t - a) / (b - a) * w;
      let y = 4;
      g.textBaseline = 'middle';
      for (const row of this.rows) {
        if (row.first) {
          y += 7;
          g.fillStyle = css('--line'); g.fillRect(0, y - 4, this.w, 1);
          g.fillStyle = css('--ink'); g.textAlign = 'left'; g.fillText(`rank ${row.rank.rank}`, 0, y + Math.max(5, this.each / 2));
        }
        row.y = y;
        g.fillStyle = css('--soft'); g.textAlign = 'right';
        if (this.each >= 9) g.fillText(row.name, left - 8, y + this.each / 2);
        const s = row.rank.spans;
        for (let i = 0; i < s.length; i += 5) {
          if (s[i] !== row.lane || s[i + 1] > b || s[i + 1] + s[i + 2] < a) continue;
          const x = Math.max(left, X(s[i + 1])), end = Math.min(left + w, X(s[i + 1] + s[i + 2])), name = this.trace.names[s[i + 3]];
          g.fillStyle = laneColour(row.name, name);
          g.globalAlpha = name === 'wait' ? 0.55 : 1;
          g.fillRect(x, y + 1, Math.max(0.6, end - x), this.each - 2);
          g.globalAlpha = 1;
          if (end - x > 46 && this.each > 12 && name !== 'wait') {
            g.save(); g.beginPath(); g.rect(x, y, end - x - 3, this.each); g.clip();
            g.fillStyle = '#fff'; g.textAlign = 'left'; g.fillText(name, x + 4, y + this.each / 2); g.restore();
          }
        }
        y += this.each;
      }
      g.fillStyle = css('--soft'); g.textAlign = 'center';
      for (const t of ticks(a, b, Math.max(2, Math.floor(w / 120)))) g.fillText(duration(t / 1e6), Math.min(this.w - 30, Math.max(left + 14, X(t))), this.h - 8);
    }
    move(e) {
      if (this.pan != null) { this.shift((this.pan - e.offsetX) / (this.w - this.left)); this.pan = e.offsetX; return hideTip(); }
      const [a, b] = this.range(), t = a + (e.offsetX - this.left) / (this.w - this.left - 4) * (b - a);
      const row = this.rows.find(r => e.offsetY >= r.y && e.offsetY < r.y + this.each), slack = (b - a) / this.w;
      if (!row || e.offsetX < this.left) return hideTip();
      const s = row.rank.spans;
      for (let i = 0; i < s.length; i += 5) if (s[i] === row.lane && t >= s[i + 1] - slack && t <= s[i + 1] + s[i + 2] + slack) {
        const name = this.trace.names[s[i + 3]];
        return showTip(e, h('div', {}, h('b', {}, name)), h('div', { class: 'soft' }, `rank ${row.rank.rank}, ${row.name}`), tipRow(laneColour(row.name, name), 'takes', duration(s[i + 2] / 1e6)),
          tipRow(null, 'begins after', duration(s[i + 1] / 1e6)), ...(s[i + 4] ? [tipRow(null, 'sends', bytes(s[i + 4]))] : []));
      }
      hideTip();
    }
  }
  const traceTab = {
    title: 'Step',
    build(main) { this.main = main; this.seen = null; this.update(); },
    update() {
      const run = chosen(), t = run.trace, id = `${run.index}${t ? t.step : ''}${!!t}`;
      if (id === this.seen) return;
      this.seen = id;
      plots = [];
      const head = h('div', { class: 'row' }, runPicker(show));
      if (!t) return this.main.replaceChildren(head, emptyNote('There is no trace in the run folder. `sifr train --trace 5:6` records steps 5 and 6.'));
      const box = h('div', { class: 'draw' }), cut = t.ranks.some(r => r.cut);
      const kinds = [['forward', '#3f6fd8'], ['backward', '#6d5bd0'], ['update', '#2f9e6e'], ['gather', '#2aa5b8'], ['reduce', '#e2832b'], ['wait', '#d98a80'], ['host', '#8d8a83'], ['other', '#a97fc4']];
      this.main.replaceChildren(head, h('section', { class: 'card full' }, h('h2', {}, `step ${t.step} as traced, ${duration(t.length / 1e6)}`),
        h('p', {}, `What each rank computes, sends and waits for. Zoom with + and −, or Shift and the wheel; move by dragging or with the arrow keys.${cut ? ' Not all spans are shown.' : ''}`),
        h('div', { class: 'key' }, kinds.map(([n, c]) => swatch(c, n))), box));
      plots = [new Timeline(box, t)];
      redraw();
    },
  };

  // --- samples and checkpoints -------------------------------------------------------------------
  const samplesTab = {
    title: 'Samples',
    build(main) { this.main = main; this.seen = null; this.update(); },
    update() {
      const run = chosen(), a = run.about || {}, samples = a.samples || [], checkpoints = a.checkpoints || [], id = `${run.index}/${samples.length}/${samples.length && samples[samples.length - 1].step}/${checkpoints.join()}`;
      if (id === this.seen) return;
      this.seen = id;
      this.main.replaceChildren(h('div', { class: 'row' }, runPicker(show)), h('div', { class: 'grid' },
        h('section', { class: 'card full' }, h('h2', {}, 'text samples', h('span', { class: 'now' }, samples.length ? 'newest first' : '')),
          samples.length ? samples.slice().reverse().map(s => h('div', { class: 'sample' }, h('div', { class: 'meta' }, `step ${exact(s.step)}`),
            h('pre', {}, h('span', { class: 'prompt' }, s.prompt || ''), s.text || ''))) : emptyNote('No text samples: set train.sample_every and train.sample_prompt.')),
        h('section', { class: 'card' }, h('h2', {}, 'checkpoints'), checkpoints.length ? h('table', {}, checkpoints.slice().reverse().map(c => h('tr', {}, h('td', {}, `step ${exact(c)}`), h('td', { class: 'mono' }, `${a.folder}/checkpoints/step-${c}`)))) : emptyNote('No checkpoint yet.'))));
    },
  };

  // --- configuration -----------------------------------------------------------------------------
  const configTab = {
    title: 'Configuration',
    build(main) {
      this.body = h('div', { class: 'scroll' });
      const search = h('input', { type: 'search', placeholder: 'filter keys', 'aria-label': 'filter keys', oninput: e => { view.filter = e.target.value; this.update(); } });
      search.value = view.filter;
      this.only = h('button', { 'aria-pressed': view.onlyDifferent, onclick: () => { view.onlyDifferent = !view.onlyDifferent; this.only.setAttribute('aria-pressed', view.onlyDifferent); this.update(); } }, 'only differences');
      main.append(h('div', { class: 'row' }, search, runs.length > 1 && h('div', { class: 'choice' }, this.only)), h('section', { class: 'card full' }, this.body));
      this.update();
    },
    update() {
      const list = shown(), keys = [...new Set(list.flatMap(r => [...(r.config || new Map()).keys()]))], many = list.length > 1;
      const value = (r, k) => (r.config && r.config.get(k)) ?? '';
      const differs = k => list.some(r => value(r, k) !== value(list[0], k));
      const rows = keys.filter(k => k.includes(view.filter) && (!many || !view.onlyDifferent || differs(k)));
      this.body.replaceChildren(rows.length ? h('table', {}, h('tr', {}, h('th', {}, 'key'), list.map(r => h('th', {}, many && h('i', { class: 'dot', color: r.colour }), ' ', r.name))),
        rows.map(k => h('tr', { class: many && differs(k) ? 'differs' : '' }, h('td', { class: 'mono' }, k), list.map(r => h('td', { class: 'mono' }, value(r, k)))))) :
        emptyNote(keys.length ? (many && view.onlyDifferent ? 'The configurations are equal.' : 'No key matches.') : 'There is no config.yaml yet.'));
    },
  };

  // --- the frame ---------------------------------------------------------------------------------
  const TABS = { curves, memory, layout: layoutTab, step: traceTab, samples: samplesTab, config: configTab };
  function show() {
    const main = $('main');
    plots.forEach(p => p.observer && p.observer.disconnect());
    plots = [];
    hideTip();
    main.replaceChildren();
    for (const b of $('tabs').children) b.setAttribute('aria-selected', b.dataset.tab === view.tab);
    if (runs.length) TABS[view.tab].build(main);
  }
  function go(tab) {
    if (!TABS[tab]) return;
    view.tab = tab;
    try { history.replaceState(null, '', `#${tab}`); } catch { location.hash = tab; } // a file may refuse
    show();
  }
  function nameRuns() { // the shortest ends of the paths that differ
    const parts = runs.map(r => (r.about ? r.about.folder : r.folder).replace(/\/+$/, '').split('/'));
    for (let n = 1; n < 20; n++) {
      const names = parts.map(p => p.slice(-n).join('/'));
      runs.forEach((r, i) => { r.name = names[i]; });
      if (new Set(names).size === names.length) return;
    }
  }
  function frameUpdate() {
    $('runs').replaceChildren(...runs.map(r => h('button', { class: 'run', title: r.folder, 'aria-pressed': !view.hidden.has(r.index), onclick: () => {
      if (runs.length > 1) { if (!view.hidden.delete(r.index) && shown().length > 1) view.hidden.add(r.index); frameUpdate(); TABS[view.tab].update(); }
    } }, h('i', { class: 'dot', color: r.colour }), r.name, h('span', { class: `state ${r.state[0]}` }, r.state[1]))));
    document.title = `${runs.map(r => r.name).join(', ')} · sifr`;
    const words = runs.map(troubleOf).filter(Boolean), notice = $('notice');
    if (leftOut) words.push(`The ${runs.length} newest runs are shown, ${exact(leftOut)} older ${leftOut > 1 ? 'are' : 'is'} not. To choose, name the runs: sifr page RUN...`);
    if (lost) words.push('The page server has ended, so nothing new will arrive. To open the page again: sifr page ' + runs.map(r => r.folder).join(' '));
    notice.hidden = !words.length;
    notice.className = words.length === Number(lost) + Number(leftOut > 0) ? 'notice mild' : 'notice';
    notice.replaceChildren(...words.map(w => h('div', {}, w)));
  }
  function troubleOf(r) {
    const a = r.about, c = a && a.checkpoints && a.checkpoints[a.checkpoints.length - 1];
    if (!a) return '';
    const skipped = a.skipped ? ` ${exact(a.skipped)} line${a.skipped > 1 ? 's' : ''} of its metrics.jsonl ${a.skipped > 1 ? 'are no records of steps and are' : 'is no record of a step and is'} not shown.` : '';
    const trouble = troubleOfState(r, a, c);
    return trouble ? trouble + skipped : skipped && `${r.name}:${skipped}`;
  }
  function troubleOfState(r, a, c) {
    const resume = c ? `rerun the same command to resume from step ${exact(c)}` : 'it had saved no checkpoint';
    if (a.state === 'died') return `${r.name} died${known(r.step) ? ` after step ${exact(r.step)}` : ''}: ${a.words || 'there is no summary'}; ${resume}.`;
    if (a.state === 'silent') return `${r.name}, started ${a.words}, has recorded nothing for ten minutes.`;
    return a.state === 'ended' && a.summary && a.summary.error ? `${r.name}: ${a.summary.error}` : '';
  }
  function refresh() { nameRuns(); frameUpdate(); TABS[view.tab].update(); }

  function setTheme(dark) {
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    colours = {};
    try { localStorage.setItem('sifr-theme', dark ? 'dark' : 'light'); } catch { /* a file may have no storage */ }
    redraw();
  }
  const isDark = () => document.documentElement.dataset.theme === 'dark';
  const KEYS = [['1 … 6', 'the views'], ['x', 'horizontal axis: step, tokens, time'], ['s', 'more smoothing; from the most back to none'], ['l', 'logarithmic loss'],
    ['drag', 'zoom into a range of steps'], ['+  −', 'zoom'], ['←  →', 'move'], ['Esc', 'show everything'], ['d', 'dark or light'], ['?', 'this list']];
  function zoomBy(factor, shift) {
    const p = plots[0];
    if (p instanceof Timeline) return factor !== 1 ? p.zoom(factor) : p.shift(shift);
    if (!(p instanceof Plot) || !p.r) return;
    const { x0, x1 } = p.r, half = (x1 - x0) / 2 * factor, mid = (x0 + x1) / 2 + shift * (x1 - x0);
    setZoom([mid - half, mid + half]);
  }
  function setAxis(axis) { view.axis = axis; view.zoom = null; $('axis').value = axis; redraw(); }
  function onKey(e) {
    if (e.target.closest && e.target.closest('input, select, dialog') || e.ctrlKey || e.metaKey || e.altKey) return;
    const axes = ['step', 'tokens', 'time'], tab = Object.keys(TABS)[Number(e.key) - 1];
    if (tab) go(tab);
    else if (e.key === 'd') setTheme(!isDark());
    else if (e.key === 'x') setAxis(axes[(axes.indexOf(view.axis) + 1) % 3]);
    else if (e.key === 's') { view.smooth = view.smooth >= 0.98 ? 0 : view.smooth === 0 ? 0.8 : view.smooth < 0.9 ? 0.95 : 0.99; $('smooth').value = view.smooth; redraw(); }
    else if (e.key === 'l') plots.forEach(p => p.spec && p.spec.key === 'loss' && p.toggleLog());
    else if (e.key === 'Escape') { view.span = null; setZoom(null); }
    else if (e.key === '+' || e.key === '=') zoomBy(0.6, 0);
    else if (e.key === '-') zoomBy(1 / 0.6, 0);
    else if (e.key === 'ArrowLeft' && e.target.getAttribute('role') !== 'tab') zoomBy(1, -0.15);
    else if (e.key === 'ArrowRight' && e.target.getAttribute('role') !== 'tab') zoomBy(1, 0.15);
    else if (e.key === '?') $('help').click();
    else return;
    e.preventDefault();
  }
  function frameBuild() {
    let dark = matchMedia('(prefers-color-scheme: dark)').matches;
    try { dark = (localStorage.getItem('sifr-theme') || (dark ? 'dark' : 'light')) === 'dark'; } catch { /* as above */ }
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    $('tabs').replaceChildren(...Object.entries(TABS).map(([k, t]) => h('button', { role: 'tab', 'data-tab': k, 'aria-selected': k === view.tab, onclick: () => go(k) }, t.title)));
    $('tabs').addEventListener('keydown', e => {
      const d = e.key === 'ArrowRight' ? 'nextElementSibling' : e.key === 'ArrowLeft' ? 'previousElementSibling' : '';
      if (d && e.target[d]) { e.target[d].focus(); e.target[d].click(); }
    });
    $('axis').addEventListener('change', e => setAxis(e.target.value));
    $('smooth').addEventListener('input', e => { view.smooth = Number(e.target.value); redraw(); });
    $('theme').addEventListener('click', () => setTheme(!isDark()));
    $('keys').append(h('h2', {}, 'Keys'), h('dl', {}, KEYS.flatMap(([k, w]) => [h('dt', {}, h('kbd', {}, k)), h('dd', {}, w)])));
    $('keys').addEventListener('click', () => $('keys').close());
    $('help').addEventListener('click', () => $('keys').showModal());
    addEventListener('keydown', onKey);
    const tab = location.hash.slice(1);
    if (TABS[tab]) view.tab = tab;
  }

  // --- loading -----------------------------------------------------------------------------------
  const get = async path => {
    const answer = await fetch(path, { cache: 'no-store' });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  };
  async function loadAbout(run) {
    run.takeAbout(await get(`about?run=${run.index}`));
    if (run.about.has_layout) run.layout = await get(`layout?run=${run.index}`);
    if (run.about.has_trace) run.trace = await get(`trace?run=${run.index}`);
    run.version = run.about.version;
  }
  const loadSeries = async run => run.takeSeries(await get(`series?run=${run.index}`));
  async function takeEvent(data) {
    const run = runs[data.run];
    if (!run) return;
    const follows = run.takeNews(data.news);
    if (!follows) await loadSeries(run);
    if (data.news.version !== run.version) await loadAbout(run);
    refresh();
  }
  let queue = Promise.resolve();
  function listen(since) {
    live = new EventSource(`live?since=${since}`);
    live.onmessage = e => { const data = JSON.parse(e.data); queue = queue.then(() => takeEvent(data)).catch(() => restart()); };
    live.onerror = () => restart();
  }
  let waiting = 0;
  function restart() { // ask again, once a while, until the server answers
    if (live) live.close();
    live = null;
    clearTimeout(waiting);
    waiting = setTimeout(() => load().catch(() => { lost = true; if (runs.length) frameUpdate(); restart(); }), lost ? 5000 : 500);
  }
  async function load() {
    const list = await get('runs');
    if (list.runs.join('\n') !== runs.map(r => r.folder).join('\n')) runs = list.runs.map((folder, i) => new Run(i, folder));
    leftOut = list.left_out;
    await Promise.all(runs.map(async run => { await loadSeries(run); await loadAbout(run); }));
    lost = false;
    nameRuns(); frameUpdate();
    if (!$('main').childElementCount) show(); else TABS[view.tab].update();
    listen(list.event);
  }
  function loadReport(data) {
    leftOut = data.left_out;
    runs = data.runs.map((r, i) => {
      const run = new Run(i, r.about.folder);
      run.takeSeries(r.series); run.takeAbout(r.about);
      run.layout = r.layout; run.trace = r.trace;
      return run;
    });
    nameRuns(); frameUpdate(); show();
  }
  // A browser opens six connections to a server: only a page that is seen keeps one.
  function onVisible() {
    if (document.hidden) { if (live) live.close(); live = null; clearTimeout(waiting); } else if (!live) restart();
  }
  frameBuild();
  const embedded = $('data');
  if (embedded) loadReport(JSON.parse(embedded.textContent));
  else {
    document.addEventListener('visibilitychange', onVisible);
    load().catch(() => restart());
  }
})();
