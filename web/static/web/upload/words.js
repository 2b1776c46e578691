// Sizes and durations as the pages word them (accounts/core/quantities.py).
export function sizeText(bytes) {
  let unit = "B";
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) {
    if (bytes < 1024) break;
    bytes /= 1024; unit = next;
  }
  return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
}

export function durationText(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  for (const [unit, length] of [["d", 86_400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.max(1, Math.round(seconds))} s`;
}

export const countText = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

// A name with what hides in it: direction marks, invisible and control characters are written out.
export const shownName = (name) => name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
