// Numbers, sizes, times and ages as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "—" : WHOLE.format(value));
export const short = (value) => (Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value));

export const messages = (number) => `${count(number)} ${number === 1 ? "message" : "messages"}`;

export function rate(value) {
  if (!value) return "0/s";
  return `${value < 10 ? value.toFixed(1) : short(value)}/s`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "—";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let place = 0;
  while (bytes >= 1000 && place < units.length - 1) { bytes /= 1000; place += 1; }
  return `${place && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[place]}`;
}

export const milliseconds = (value) => (value === null || value === undefined ? "—" : `${Number(value.toPrecision(2))} ms`);

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 1) return seconds ? `${Math.round(seconds * 1000)} ms` : "0 s";
  if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86_400).toFixed(1)} d`;
}

// A duration as it may be typed into a setting: 5400 is 1h30m.
export function duration(seconds) {
  let left = Math.round(seconds * 1000), text = "";
  for (const [unit, length] of [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000], ["ms", 1]]) {
    const whole = Math.floor(left / length);
    if (whole) text += `${whole}${unit}`;
    left -= whole * length;
  }
  return text || "0s";
}

// A moment of today without its date.
export function clock(text) {
  const whole = moment(text);
  return whole.slice(0, 10) === moment(Date.now()).slice(0, 10) ? whole.slice(11) : whole;
}

export function moment(text) {
  if (!text) return null;
  const date = new Date(text);
  const pad = (value, width = 2) => String(value).padStart(width, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}
