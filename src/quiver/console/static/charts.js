// Line charts over the last minutes, drawn by Chart.js, in the colours of the theme.

import { el } from "./dom.js";
import { history, onSnapshot } from "./live.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SPAN_MS = 120_000;
const SPAN_MIN_MS = 30_000;

// `lines` are [name, snapshot => number], `axis` is one of `axes.js`; the chart ends with `signal`.
export function chart(title, lines, axis, signal) {
  let step = 1;
  const canvas = el("canvas", { role: "img", "aria-label": `${title}, over the last two minutes` });
  const card = el("section", { class: "card chart" }, el("h2", {}, title), el("div", { class: "plot" }, canvas));
  const points = (read) => history.map((one) => ({ x: one.time_ms, y: read(one) ?? null }));
  const drawn = new window.Chart(canvas, {
    type: "line",
    data: { datasets: lines.map(([label, read]) => ({ label, data: points(read), borderWidth: 2, pointRadius: 0, tension: 0.2, fill: false })) },
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, normalized: true, parsing: false,
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { type: "time", time: { unit: "second", displayFormats: { second: "HH:mm:ss" } }, ticks: { maxTicksLimit: 5, maxRotation: 0, autoSkipPadding: 20 } },
        y: { min: 0, max: 1, ticks: { stepSize: 1, autoSkip: false, callback: (value) => axis.label(value, step) } },
      },
      plugins: {
        legend: { display: lines.length > 1, position: "bottom", labels: { boxWidth: 12, boxHeight: 2 } },
        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${axis.text(item.parsed.y)}` } },
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
  const follow = onSnapshot((snapshot) => {
    lines.forEach(([, read], place) => { drawn.data.datasets[place].data = points(read); });
    const first = Math.min(history[0].time_ms, snapshot.time_ms - SPAN_MIN_MS);
    drawn.options.scales.x.min = Math.max(first, snapshot.time_ms - SPAN_MS);
    drawn.options.scales.x.max = snapshot.time_ms;
    const greatest = Math.max(0, ...drawn.data.datasets.flatMap(({ data }) => data.map(({ y }) => y ?? 0)));
    const scale = axis.scale(greatest);
    step = drawn.options.scales.y.ticks.stepSize = scale.step;
    drawn.options.scales.y.max = scale.end;
    drawn.update("none");
    canvas.dataset.points = history.length;
    canvas.dataset.labels = drawn.scales.y.ticks.map(({ label }) => label).join("|");
    canvas.dataset.last = lines.map(([, read]) => read(snapshot)).join(" ");
  });
  paint();
  const repaint = () => { paint(); drawn.update("none"); };
  addEventListener("quiver:theme", repaint, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint, { signal });
  signal.addEventListener("abort", () => { follow(); drawn.destroy(); });
  return card;
}
