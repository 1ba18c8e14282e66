//! Kubernetes quantities, exactly: no floating point, and the grammar of `apimachinery/pkg/api/resource/quantity.go`.

/// A quantity, in billionths of its unit: what lies below a billionth counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    pub nanos: i128,
}

/// Digits beyond this many do not occur, and might overflow.
const MOST_DIGITS: usize = 28;

/// The largest exponent after `e` or `E`, either way: Kubernetes' own largest suffix stands for 18.
const MOST_EXPONENT: i32 = 18;

impl Quantity {
    /// Reads a quantity such as `100m`, `1.5Gi`, `1e3`, `5.` or `.5`, with space around it, which the API server takes off. The error says
    /// what was found and wanted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wanted = || format!("found `{text}`, wanted a quantity such as 500m, 2, 1.5Gi or 1e3");
        let (sign, rest) = match text.as_bytes().first() {
            Some(b'-') => (-1, &text[1..]),
            Some(b'+') => (1, &text[1..]),
            _ => (1, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction}");
        // The reference takes a unit without a number, or a sign alone, for zero; only nothing at all is no quantity.
        if text.is_empty() || digits.len() > MOST_DIGITS || fraction.contains('.') {
            return Err(wanted());
        }
        let mantissa: i128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| wanted())? };
        let scale = i32::try_from(fraction.len()).map_err(|_| wanted())?;
        let (binary, decimal) = multiplier(suffix).ok_or_else(wanted)?;
        let too_large = || format!("found `{text}`, which is more than there can be");
        let shifted = mantissa.checked_mul(1 << (10 * binary)).ok_or_else(too_large)?;
        let exponent = 9 + decimal - scale;
        let power = 10_i128.checked_pow(exponent.unsigned_abs()).ok_or_else(too_large)?;
        let nanos = if exponent >= 0 {
            shifted.checked_mul(power).ok_or_else(too_large)?
        } else {
            // Away from zero, as Kubernetes rounds.
            (shifted + power - 1) / power
        };
        Ok(Self { nanos: sign * nanos })
    }

    /// The nearest floating-point number, for measuring; never for comparing.
    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / 1e9
    }
}

/// The powers of 1024 and of 10 that a suffix stands for.
fn multiplier(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (1, 0),
        "Mi" => (2, 0),
        "Gi" => (3, 0),
        "Ti" => (4, 0),
        "Pi" => (5, 0),
        "Ei" => (6, 0),
        // `1E` is an exa, `1E3` a thousand.
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.trim_start_matches(['+', '-']);
            let well_formed = exponent.len() - digits.len() <= 1 && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let exponent: i32 = if well_formed { exponent.parse().ok()? } else { return None };
            (0, (-MOST_EXPONENT..=MOST_EXPONENT).contains(&exponent).then_some(exponent)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// C3 and the grammar of the reference.
    #[test]
    fn c3_reads_the_grammar_exactly() {
        const UNIT: i128 = 1_000_000_000;
        for (text, nanos) in [
            ("0", 0),
            ("1", UNIT),
            ("+1", UNIT),
            ("-1", -UNIT),
            ("5.", 5 * UNIT),
            (".5", UNIT / 2),
            ("0.5", UNIT / 2),
            ("100m", UNIT / 10),
            ("750m", UNIT * 3 / 4),
            ("1n", 1),
            ("0.1n", 1),
            ("1u", 1000),
            ("1k", 1000 * UNIT),
            ("1E", 1_000_000_000_000_000_000 * UNIT),
            ("1E3", 1000 * UNIT),
            ("1e3", 1000 * UNIT),
            ("1e-3", UNIT / 1000),
            ("1Ki", 1024 * UNIT),
            ("1.5Gi", 1_610_612_736 * UNIT),
            ("1Ei", (1 << 60) * UNIT),
            ("9007199254740993", 9_007_199_254_740_993 * UNIT),
            ("12345678n", 12_345_678),
            ("-0.1n", -1),
            (" 1 ", UNIT),
            ("Mi", 0),
            ("-", 0),
            (".", 0),
        ] {
            assert_eq!(Quantity::parse(text), Ok(Quantity { nanos }), "{text}");
        }
    }

    #[test]
    fn c3_refuses_what_is_no_quantity() {
        for text in [
            "", "K", "1K", "1g", "1mi", "1GB", "1GiB", "4 Gi", "+-1", "--1", "1..2", "1.2.3", "1e", "1e+-3", "1e1.5", "1ee3", "NaN", "inf",
            "0x1", "1e999",
        ] {
            assert!(Quantity::parse(text).is_err_and(|e| e.contains(text)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[-+0-9.eEinmkKMGTP ]{0,40}") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn milli_and_unit_agree(units in 0..1_000_000_000i128) {
            prop_assert_eq!(Quantity::parse(&format!("{}m", units * 1000)), Quantity::parse(&units.to_string()));
        }
    }
}
