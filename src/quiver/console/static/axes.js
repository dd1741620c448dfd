// The vertical axes of charts: round steps, and labels in one unit, so that no two are the same.

import { age, milliseconds, short } from "./format.js";

const STEPS_MAX = 5;
const DURATIONS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];

// 1, 2 or 5 times a power of ten.
function decimal(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least * (1 - 1e-9));
}

function duration(least) {
  return DURATIONS.find((one) => one >= least) ?? 86_400 * decimal(least / 86_400);
}

function inSeconds(value, step) {
  const [unit, name] = step >= 86_400 ? [86_400, "d"] : step >= 3600 ? [3600, "h"] : step >= 60 ? [60, "min"] : [1, "s"];
  return `${short(Math.round(value / unit))} ${name}`;
}

function inMilliseconds(value, step) {
  if (step >= 1000) return `${short(Math.round(value / 1000))} s`;
  return value === 0 ? "0 ms" : `${value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))} ms`;
}

// `text` shows one value, `label` one at a step. `scale` is the step that the greatest value needs, and where
// the axis ends. `least` is the smallest step.
const axis = (text, label, round, least) => ({
  text,
  label,
  scale(greatest) {
    const step = Math.max(least, round(Math.max(greatest, least) / STEPS_MAX));
    return { step, end: step * Math.max(1, Math.ceil(greatest / step - 1e-9), least === step ? 4 : 1) };
  },
});

const MOMENTS_MS = [10, 30, 60, 120, 300, 600, 900].map((seconds) => seconds * 1000);

// Round moments for a time axis, so far apart that each has about 80 pixels.
export function moments(from, to, width) {
  const step = MOMENTS_MS.find((one) => (to - from) / one <= Math.max(2, width / 80)) ?? 1_800_000;
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.floor((to - first) / step) + 1 }, (_, place) => first + place * step);
}

export const counts = axis(short, short, decimal, 1);
export const ages = axis(age, inSeconds, duration, 1);
export const latencies = axis(milliseconds, inMilliseconds, decimal, 0.2);
