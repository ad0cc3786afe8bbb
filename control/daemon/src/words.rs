//! The nearest valid word, for people who mistype.

/// `did you mean 'tap'?` where a word is near, and in any case the list of words.
pub fn hint(given: &str, words: &[&str]) -> String {
    let near = words
        .iter()
        .map(|w| (strsim::damerau_levenshtein(given, w), *w))
        .filter(|(distance, w)| *distance <= w.len().div_ceil(3).max(1))
        .min();
    let all = words.join(", ");
    match near {
        Some((_, word)) => format!("did you mean '{word}'? (valid: {all})"),
        None => format!("valid: {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn near_words_are_offered_and_far_ones_are_not() {
        let words = ["vhost-user", "tap", "stream"];
        assert!(hint("vhostuser", &words).starts_with("did you mean 'vhost-user'?"));
        assert!(hint("tpa", &words).starts_with("did you mean 'tap'?"));
        assert_eq!(hint("bluetooth", &words), "valid: vhost-user, tap, stream");
    }
}
