// Line charts over the last minutes, drawn by Chart.js, in the colours of the theme.

import { moments } from "./axes.js";
import { el } from "./dom.js";
import { moment } from "./format.js";
import { latest } from "./live.js";
import { span } from "./span.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SPAN_MIN_MS = 60_000;

// `lines` are [name, field], `axis` is one of `axes.js`, `source` a `past`; the chart ends with `signal`.
export function chart(title, lines, axis, source, signal) {
  let step = 1;
  const canvas = el("canvas", { role: "img", "aria-label": title });
  const card = el("section", { class: "card chart" }, el("h2", {}, title), el("div", { class: "plot" }, canvas));
  const drawn = new window.Chart(canvas, {
    type: "line",
    data: { datasets: lines.map(([label]) => ({ label, data: [], borderWidth: 2, pointRadius: 0, cubicInterpolationMode: "monotone", fill: false })) },
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, normalized: true, parsing: false,
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { type: "linear", ticks: { autoSkip: false, maxRotation: 0, callback: (value) => moment(value).slice(11, value % 60_000 ? 19 : 16) },
          afterBuildTicks: (scale) => { scale.ticks = moments(scale.min, scale.max, scale.width).map((value) => ({ value })); } },
        y: { min: 0, max: 1, ticks: { stepSize: 1, autoSkip: false, callback: (value) => axis.label(value, step) } },
      },
      plugins: {
        legend: { display: lines.length > 1, position: "bottom", labels: { boxWidth: 12, boxHeight: 2 } },
        tooltip: { callbacks: { title: ([item]) => moment(item.parsed.x).slice(11, 19), label: (item) => `${item.dataset.label}: ${axis.text(item.parsed.y)}` } },
      },
    },
  });
  const paint = () => {
    const soft = colour("--soft"), line = colour("--line");
    drawn.data.datasets.forEach((one, place) => { one.borderColor = one.backgroundColor = colour(`--c${place + 1}`); });
    for (const one of Object.values(drawn.options.scales)) {
      one.ticks.color = soft;
      one.grid = { color: line };
      one.border = { color: line };
    }
    drawn.options.plugins.legend.labels.color = soft;
  };
  const draw = () => {
    const { x, y } = drawn.options.scales, now = latest()?.time_ms ?? Date.now();
    x.max = now;
    x.min = Math.max(now - span(), Math.min(source.first(), now - SPAN_MIN_MS));
    lines.forEach(([, field], place) => { drawn.data.datasets[place].data = source.points(field, x.min); });
    const all = drawn.data.datasets.map(({ data }) => data);
    const scale = axis.scale(Math.max(0, ...all.flatMap((data) => data.map((point) => point.y ?? 0))));
    step = y.ticks.stepSize = scale.step;
    y.max = scale.end;
    drawn.update("none");
    canvas.dataset.points = all[0].length;
    canvas.dataset.last = all.map((data) => data.at(-1)?.y ?? "").join(" ");
    canvas.dataset.labels = drawn.scales.y.ticks.map(({ label }) => label).join("|");
    canvas.dataset.seconds = Math.round((x.max - x.min) / 1000);
  };
  paint();
  source.follow(draw);
  const repaint = () => { paint(); draw(); };
  addEventListener("quiver:theme", repaint, { signal });
  addEventListener("quiver:span", draw, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint, { signal });
  signal.addEventListener("abort", () => drawn.destroy());
  return card;
}
