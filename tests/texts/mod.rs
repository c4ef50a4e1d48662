//! Checks of the texts of programs and errors, for all tests.

/// Assert that a text contains this part. A failure shows the text, or its beginning if it is long.
#[track_caller]
pub fn contains(text: impl AsRef<str>, part: impl AsRef<str>) {
    let (text, part) = (text.as_ref(), part.as_ref());
    let begin: String = text.chars().take(4000).collect();
    assert!(text.contains(part), "no '{part}' in {} bytes:\n{begin}", text.len());
}
