// A row of tokens, of which one can be selected; their background may show a signed number.

import { css } from "../color";
import { row } from "../state";

export const visible = (token: string) => (token.trim() ? token : "␣");

interface Props {
  tokens: string[];
  label: string;
  scores?: ArrayLike<number>; // signed; blue to orange, relative to the largest
  selected?: number;
  onSelect?: (position: number) => void;
}

export function Tokens({ tokens, label, scores, selected = row.value, onSelect }: Props) {
  const most = scores ? Math.max(1e-12, ...Array.from(scores, Math.abs)) : 1;
  return (
    <div class="tokens" role="group" aria-label={label}>
      {tokens.map((token, n) => (
        <button
          key={n}
          class="token"
          aria-pressed={n === selected}
          title={scores ? `${token}: ${scores[n].toPrecision(4)}` : `position ${n + 1}`}
          style={scores && { background: css("signed", 127.5 * (1 + scores[n] / most)), color: Math.abs(scores[n]) > 0.75 * most ? "#fff" : "#111" }}
          onClick={() => (onSelect ? onSelect(n) : (row.value = n === row.value ? -1 : n))}
        >
          {visible(token)}
        </button>
      ))}
    </div>
  );
}

/** The selected token, or the last one. */
export const position = (count: number): number => (row.value >= 0 && row.value < count ? row.value : count - 1);
