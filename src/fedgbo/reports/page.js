"use strict";
// Draws the charts: `specs` by score, `points` for all of them. With ast, expressions are interpreted instead of compiled,
// so that the page's security policy can forbid eval.
const OPTIONS = { actions: false, renderer: "svg", ast: true, patch: repaired };

// Colours are CSS variables, which SVG accepts, so that the style sheet alone decides on dark mode and print.
const TEXT = { labelColor: "var(--ink)", titleColor: "var(--ink)", labelFontSize: 12, titleFontSize: 13 };
const CONFIG = {
  background: null,
  font: "system-ui, sans-serif",
  axis: { ...TEXT, labelSeparation: 6, gridColor: "var(--rule)", domainColor: "var(--quiet)", tickColor: "var(--quiet)" },
  legend: TEXT,
  view: { stroke: "var(--rule)" },
};

// The pointer hits Voronoi cells around the points, whose point is datum.datum. Vega-Lite 6 writes that in tooltips of
// numbers but not of names.
function repaired(vega) {
  for (const mark of vega.marks.filter((m) => m.name.endsWith("_voronoi"))) {
    const tooltip = mark.encode.update.tooltip;
    tooltip.signal = tooltip.signal.replace(/(?<!datum\.)\bdatum\[/g, "datum.datum[");
  }
  return vega;
}

function readable(chart) {
  return JSON.parse(chart.querySelector('script[type="application/json"]').textContent);
}

function specification(chart, data) {
  const x = chart.querySelector("select.x"), y = chart.querySelector("select.y").value;
  const [logX, logY, bands] = ["log-x", "log-y", "bands"].map((name) => chart.querySelector(`.${name}`)?.checked);
  const spec = structuredClone(data.specs[y]), highest = spec.layer[0].encoding.y.scale.domain[1];
  const points = data.points.filter(
    (p) => p[x.value] !== undefined && p[y] !== undefined && (!logX || p[x.value] > 0) && (!logY || p[y] > 0),
  );
  for (const layer of spec.layer) {
    layer.encoding.x.field = x.value;
    layer.encoding.x.title = x.selectedOptions[0].textContent;
    layer.encoding.x.axis = x.value === "round" ? { tickMinStep: 1 } : {};
    if (logX) layer.encoding.x.scale = { type: "log", nice: false };
    if (logY) layer.encoding.y.scale = { type: "log", domain: [Math.min(...points.map((p) => p[y])) / 1.2, highest] };
  }
  if (logY) spec.transform.push({ calculate: `max(datum["${y}_low"], datum["${y}"] / 100)`, as: `${y}_low` });
  if (!bands) spec.layer[0].encoding.opacity = { value: 0 };
  return { ...spec, data: { values: points }, config: structuredClone(CONFIG), description: data.description };
}

function shown(chart) {
  return [...chart.querySelectorAll(".legend input:checked")].map((box) => box.value);
}

function zoom(chart, view, factor) {
  for (const name of ["x", "y"]) {
    const scale = view.scale(name), log = scale.type === "log";
    const [low, high] = scale.domain().map((v) => (log ? Math.log10(v) : v));
    const middle = (low + high) / 2, half = ((high - low) / 2) * factor;
    const domain = [middle - half, middle + half].map((v) => (log ? 10 ** v : v));
    view.signal(`zoom_${chart.querySelector(`select.${name}`).value}`, domain);
  }
  return view.runAsync();
}

function interactive(chart) {
  const data = readable(chart), plot = chart.querySelector(".plot");
  let drawn = null;
  const draw = async () => {
    const before = drawn;
    drawn = (async () => {
      if (before) (await before).finalize();
      const result = await vegaEmbed(plot, specification(chart, data), OPTIONS);
      await result.view.signal("shown", shown(chart)).runAsync();
      chart.view = result.view;
      return result;
    })();
    return drawn;
  };
  const select = async () => (await drawn).view.signal("shown", shown(chart)).runAsync();
  const every = (checked) => () => {
    chart.querySelectorAll(".legend input").forEach((box) => { box.checked = checked; });
    return select();
  };
  chart.querySelectorAll(".controls select, .controls input").forEach((control) => control.addEventListener("change", draw));
  chart.querySelectorAll(".legend input").forEach((box) => box.addEventListener("change", select));
  chart.querySelector(".all").addEventListener("click", every(true));
  chart.querySelector(".none").addEventListener("click", every(false));
  chart.querySelector(".in").addEventListener("click", async () => zoom(chart, (await drawn).view, 1 / 1.5));
  chart.querySelector(".out").addEventListener("click", async () => zoom(chart, (await drawn).view, 1.5));
  chart.querySelector(".reset").addEventListener("click", draw);
  return draw();
}

const drawings = [...document.querySelectorAll(".chart")].map((chart) =>
  chart.classList.contains("still")
    ? vegaEmbed(chart.querySelector(".plot"), { ...readable(chart).spec, config: structuredClone(CONFIG) }, OPTIONS)
    : interactive(chart),
);
Promise.all(drawings).then(() => { document.documentElement.dataset.drawn = "yes"; });
