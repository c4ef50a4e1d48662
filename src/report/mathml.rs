//! Equations of plain text, as the mixers' files have them, set as mathematics: MathML, which browsers draw and screen
//! readers read. Indices stand behind _ and ^, single letters are variables, words are words.

use std::fmt::Write;

/// Names of functions, which stand upright and close to their arguments.
const FUNCTIONS: [&str; 17] = [
    "exp", "ln", "log", "max", "min", "tanh", "sigmoid", "softmax", "softplus", "diag", "cos", "sin", "Re", "Im",
    "relu", "mod", "mean",
];

/// An equation as a `math` element.
pub fn math(text: &str) -> String {
    format!("<math data-source=\"{}\">{}</math>", escaped(text), row(text))
}

/// A text with its angle brackets, ampersands and quotes escaped.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A mark that is drawn over the letter before it.
fn is_mark(c: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&c)
}

/// The character on the line that a superscript character stands for.
fn raised(c: char) -> Option<char> {
    const PAIRS: [(char, char); 14] = [
        ('⁰', '0'),
        ('¹', '1'),
        ('²', '2'),
        ('³', '3'),
        ('⁴', '4'),
        ('⁵', '5'),
        ('⁶', '6'),
        ('⁷', '7'),
        ('⁸', '8'),
        ('⁹', '9'),
        ('⁻', '−'),
        ('ᵀ', '⊤'),
        ('ᴺ', 'N'),
        ('ᵐ', 'm'),
    ];
    PAIRS.iter().find(|pair| pair.0 == c).map(|pair| pair.1)
}

fn is_letter(c: char) -> bool {
    c.is_alphabetic() && raised(c).is_none()
}

/// The bytes of the letters at the start, with marks and primes, and with a digit that ends them.
fn letters(rest: &str) -> usize {
    let mut len = 0;
    let mut chars = rest.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let digit = c.is_ascii_digit() && !chars.peek().is_some_and(|(_, c)| c.is_ascii_alphanumeric() || *c == '_');
        if !(is_letter(c) || len > 0 && (is_mark(c) || matches!(c, '\'' | '′') || digit)) {
            break;
        }
        len = at + c.len_utf8();
    }
    len
}

fn number(rest: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(rest);
    match rest[whole..].strip_prefix('.').map(digits) {
        Some(n) if whole > 0 && n > 0 => whole + 1 + n,
        _ => whole,
    }
}

/// The index behind _ or ^, and the rest of the text. The index is in braces or brackets, or is letters and digits.
fn script(rest: &str) -> (String, &str) {
    if rest.starts_with(['{', '(']) {
        let mut depth = 0;
        for (at, c) in rest.char_indices() {
            depth += i32::from(matches!(c, '{' | '(')) - i32::from(matches!(c, '}' | ')'));
            if depth == 0 {
                return (row(&rest[1..at]), &rest[at + 1..]);
            }
        }
    }
    let mut len = 0;
    for (at, c) in rest.char_indices() {
        let comma = c == ',' && rest[at + 1..].starts_with(|c: char| is_letter(c) || c.is_ascii_digit());
        let sign = at == 0 && matches!(c, '*' | '−' | '-');
        if !(is_letter(c) || is_mark(c) || c.is_ascii_digit() || sign || comma && len > 0) {
            break;
        }
        len = at + c.len_utf8();
    }
    (row(&rest[..len]), &rest[len..])
}

/// The elements of a text, in a row.
fn row(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    // Whether the last element is a word.
    let mut word = false;
    while let Some(first) = rest.chars().next() {
        let trimmed = rest.trim_start();
        if trimmed.len() < rest.len() {
            let gap = rest.len() - trimmed.len();
            let near_word =
                word || FUNCTIONS.iter().any(|f| trimmed.starts_with(f)) || is_word(trimmed.trim_start_matches('('));
            let width = if gap > 1 {
                "1.5em"
            } else if near_word {
                "0.3em"
            } else {
                "0.1em"
            };
            let _ = write!(out, "<mspace width=\"{width}\"></mspace>");
            rest = trimmed;
            continue;
        }
        let (n, digits) = (letters(rest), number(rest));
        let base = if n > 0 {
            let name = &rest[..n];
            rest = &rest[n..];
            word = is_word(name);
            // log_dt is a name, and no logarithm.
            let behind = rest.strip_prefix('_').map_or(0, letters);
            if name == "log" && behind > 0 {
                let whole = format!("<mtext>log_{}</mtext>", escaped(&rest[1..=behind]));
                rest = &rest[1 + behind..];
                whole
            } else {
                named(name)
            }
        } else if digits > 0 {
            let number = &rest[..digits];
            rest = &rest[digits..];
            word = false;
            format!("<mn>{number}</mn>")
        } else {
            rest = &rest[first.len_utf8()..];
            word = false;
            match first {
                '½' => "<mn>½</mn>".into(),
                c => format!("<mo stretchy=\"false\">{}</mo>", escaped(&c.to_string())),
            }
        };
        let (mut sub, mut sup) = (String::new(), String::new());
        loop {
            if let Some(after) = rest.strip_prefix('_') {
                (sub, rest) = script(after);
            } else if let Some(after) = rest.strip_prefix('^') {
                let of;
                (of, rest) = script(after);
                sup += &of;
            } else if let Some(c) = rest.chars().next().filter(|&c| raised(c).is_some()) {
                let run: String = rest.chars().map_while(raised).collect();
                let len: usize = rest.chars().take_while(|&c| raised(c).is_some()).map(char::len_utf8).sum();
                let tag = if c == 'ᵀ' { "mo" } else { "mn" };
                let _ = write!(sup, "<{tag}>{run}</{tag}>");
                rest = &rest[len..];
            } else {
                break;
            }
        }
        out += &match (sub.is_empty(), sup.is_empty()) {
            (true, true) => base,
            (false, true) => format!("<msub>{base}<mrow>{sub}</mrow></msub>"),
            (true, false) => format!("<msup>{base}<mrow>{sup}</mrow></msup>"),
            (false, false) => format!("<msubsup>{base}<mrow>{sub}</mrow><mrow>{sup}</mrow></msubsup>"),
        };
    }
    out
}

/// Whether a text begins with letters of the Latin alphabet that are more than one variable.
fn is_word(text: &str) -> bool {
    let n = letters(text);
    let name = &text[..n];
    name.chars().filter(|c| is_letter(*c)).count() > 1 && name.is_ascii()
}

/// Letters as an element: a variable, several of them, a function or a word.
fn named(name: &str) -> String {
    let single = name.chars().filter(|c| is_letter(*c)).count() == 1;
    match name {
        "Σ" => "<mo>∑</mo>".into(),
        "Π" => "<mo>∏</mo>".into(),
        "∂" => "<mo>∂</mo>".into(),
        _ if single => {
            // A letter that stands alone is slanted, and a prime would be a second one.
            let letter = name.trim_end_matches(['\'', '′']);
            let primes = &name[letter.len()..];
            match primes.is_empty() {
                true => format!("<mi>{}</mi>", escaped(letter)),
                false => {
                    format!("<mrow><mi>{}</mi><mo lspace=\"0\" rspace=\"0\">{primes}</mo></mrow>", escaped(letter))
                }
            }
        }
        _ if FUNCTIONS.contains(&name) => format!("<mi>{name}</mi>"),
        _ if name.is_ascii() => format!("<mtext>{}</mtext>", escaped(name)),
        // ΔA is a product.
        _ => {
            let mut all = String::new();
            let mut chars = name.chars().peekable();
            while let Some(c) = chars.next() {
                let mut one = c.to_string();
                while let Some(&mark) = chars.peek().filter(|&&c| !is_letter(c)) {
                    one.push(mark);
                    chars.next();
                }
                let _ = write!(all, "<mi>{}</mi>", escaped(&one));
            }
            format!("<mrow>{all}</mrow>")
        }
    }
}
