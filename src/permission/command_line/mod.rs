//! Simple commands of a shell command line.
//!
//! Own code: parsers of the whole language recurse as deep as their input, which a model chooses, or are not written in
//! Rust. This one is linear, and gives up on what it does not know: then no rule with a prefix allows the line. The
//! syntax is that of the Bash Reference Manual, 3.1 and 3.2.

mod simple_command;
#[cfg(test)]
mod tests;

pub(super) use simple_command::SimpleCommand;

/// Max depth of substitutions and subshells.
const DEPTH_MAX: usize = 16;
/// Max length of a command line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Max number of simple commands of a line.
const COMMANDS_MAX: usize = 1_000;

/// Words before which, or after which, a command begins.
const RESERVED: [&str; 12] =
    ["!", "do", "done", "elif", "else", "fi", "if", "then", "until", "while", "{", "}"];
/// Words whose syntax is not cut.
const UNKNOWN: [&str; 4] = ["case", "coproc", "function", "select"];

/// The line has syntax that is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUnderstood;

/// Cuts a command line into its simple commands, those of substitutions and subshells included.
pub(super) fn cut(line: &str) -> Result<Vec<SimpleCommand>, NotUnderstood> {
    if line.len() > LINE_BYTES_MAX || line.contains('\0') {
        return Err(NotUnderstood);
    }
    let mut found = Vec::new();
    cut_into(line, 0, &mut found)?;
    if found.len() > COMMANDS_MAX { Err(NotUnderstood) } else { Ok(found) }
}

fn cut_into(text: &str, depth: usize, found: &mut Vec<SimpleCommand>) -> Result<(), NotUnderstood> {
    let mut cutter = Cutter { chars: text.chars().collect(), at: 0, depth, found, here: Vec::new() };
    cutter.list(None)
}

struct Cutter<'a> {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    found: &'a mut Vec<SimpleCommand>,
    /// Here-documents whose text begins at the next newline.
    here: Vec<HereDocument>,
}

struct HereDocument {
    delimiter: String,
    strips_tabs: bool,
    is_literal: bool,
}

/// A word that is being read.
#[derive(Default)]
struct Word {
    text: String,
    is_dynamic: bool,
    is_quoted: bool,
}

/// What a list reads at the moment.
#[derive(Default)]
struct Reading {
    command: SimpleCommand,
    word: Option<Word>,
    /// Whether the next word is the target of a redirection.
    is_target: bool,
    /// Whether the words are those of a `for`, which runs none of them.
    is_for: bool,
    /// Number of words of that `for`: the variable, `in`, and the values.
    for_words: usize,
}

impl Cutter<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek(0)?;
        self.at += 1;
        Some(next)
    }

    fn deeper(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), NotUnderstood>,
    ) -> Result<(), NotUnderstood> {
        self.depth += 1;
        // A here-document whose text has not come yet would begin in there.
        if self.depth > DEPTH_MAX || !self.here.is_empty() {
            return Err(NotUnderstood);
        }
        read(self)?;
        self.depth -= 1;
        Ok(())
    }

    /// Reads commands up to a closing character, or to the end.
    fn list(&mut self, close: Option<char>) -> Result<(), NotUnderstood> {
        let mut reading = Reading::default();
        while let Some(next) = self.next() {
            if Some(next) == close {
                // A here-document that begins in a substitution does not end behind it.
                return if self.here.is_empty() {
                    self.end_command(&mut reading)
                } else {
                    Err(NotUnderstood)
                };
            }
            match next {
                ' ' | '\t' => self.end_word(&mut reading)?,
                // Two lines are joined between words only: inside a word or an operator, a shell reads on.
                '\\' if self.peek(0) == Some('\n') => {
                    let before = self.at.checked_sub(2).and_then(|before| self.chars.get(before));
                    if !matches!(before, Some(' ' | '\t')) {
                        return Err(NotUnderstood);
                    }
                    self.at += 1;
                }
                '\n' => {
                    self.end_command(&mut reading)?;
                    self.skip_here_documents()?;
                }
                '&' if self.peek(0) == Some('>') => {}
                ';' | '&' | '|' => self.end_command(&mut reading)?,
                '#' if reading.word.is_none() => {
                    while self.peek(0).is_some_and(|next| next != '\n') {
                        self.at += 1;
                    }
                }
                '<' | '>' if self.peek(0) == Some('(') => {
                    self.at += 1;
                    reading.word.get_or_insert_default().is_dynamic = true;
                    self.deeper(|cutter| cutter.list(Some(')')))?;
                }
                '<' | '>' => self.redirection(next, &mut reading)?,
                '(' => {
                    let begins = reading.word.is_none() && reading.command == SimpleCommand::default();
                    if !begins || self.peek(0) == Some('(') || reading.is_for {
                        return Err(NotUnderstood);
                    }
                    self.deeper(|cutter| cutter.list(Some(')')))?;
                }
                ')' => return Err(NotUnderstood),
                _ => self.part_of_word(next, reading.word.get_or_insert_default())?,
            }
        }
        if close.is_some() || !self.here.is_empty() {
            return Err(NotUnderstood);
        }
        self.end_command(&mut reading)
    }

    fn redirection(&mut self, sign: char, reading: &mut Reading) -> Result<(), NotUnderstood> {
        // Digits in front of it are a file descriptor.
        let is_number = |word: &Word| {
            let is_bare = !word.is_quoted && !word.is_dynamic && !word.text.is_empty();
            is_bare && word.text.chars().all(|digit| digit.is_ascii_digit())
        };
        if reading.word.as_ref().is_some_and(is_number) {
            reading.word = None;
        }
        self.end_word(reading)?;
        reading.command.has_more = true;
        let is_here = sign == '<' && self.peek(0) == Some('<');
        if is_here && self.peek(1) != Some('<') {
            self.at += 1;
            let strips_tabs = self.peek(0) == Some('-');
            self.at += usize::from(strips_tabs);
            return self.here_document(strips_tabs);
        }
        let mut last = sign;
        while let Some(next @ ('<' | '>' | '&' | '|')) = self.peek(0) {
            self.at += 1;
            last = next;
        }
        reading.is_target = last != '&';
        if !reading.is_target {
            // A descriptor, or `-`, which closes it. Other words name a file, or are evaluated.
            let begin = self.at;
            while self.peek(0).is_some_and(|digit| digit.is_ascii_digit()) {
                self.at += 1;
            }
            self.at += usize::from(self.at == begin && self.peek(0) == Some('-'));
            if self.at == begin || !self.is_word_end() {
                return Err(NotUnderstood);
            }
        }
        Ok(())
    }

    fn here_document(&mut self, strips_tabs: bool) -> Result<(), NotUnderstood> {
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.at += 1;
        }
        let mut word = Word::default();
        while let Some(next) = self.peek(0) {
            if matches!(next, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')') {
                break;
            }
            self.at += 1;
            self.part_of_word(next, &mut word)?;
        }
        if word.is_dynamic || word.text.is_empty() {
            return Err(NotUnderstood);
        }
        self.here.push(HereDocument { delimiter: word.text, strips_tabs, is_literal: word.is_quoted });
        Ok(())
    }

    /// Skips the text of here-documents, but for the commands in it.
    fn skip_here_documents(&mut self) -> Result<(), NotUnderstood> {
        for document in std::mem::take(&mut self.here) {
            loop {
                if self.at >= self.chars.len() {
                    return Err(NotUnderstood);
                }
                let rest = &self.chars[self.at..];
                let length = rest.iter().position(|&next| next == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at = (self.at + length + 1).min(self.chars.len());
                let bare = if document.strips_tabs { line.trim_start_matches('\t') } else { &line };
                if bare == document.delimiter {
                    break;
                }
                // Substitutions and joined lines are not followed.
                let is_expanded =
                    ["`", "$(", "${", "$["].iter().any(|sign| line.contains(sign)) || line.ends_with('\\');
                if !document.is_literal && is_expanded {
                    return Err(NotUnderstood);
                }
            }
        }
        Ok(())
    }

    /// Reads a character of a word, with what it begins.
    fn part_of_word(&mut self, first: char, word: &mut Word) -> Result<(), NotUnderstood> {
        match first {
            '\\' => match self.next().ok_or(NotUnderstood)? {
                '\n' => return Err(NotUnderstood),
                escaped => {
                    word.is_quoted = true;
                    word.text.push(escaped);
                }
            },
            '\'' => {
                word.is_quoted = true;
                loop {
                    match self.next().ok_or(NotUnderstood)? {
                        '\'' => break,
                        next => word.text.push(next),
                    }
                }
            }
            '"' => self.double_quoted(word)?,
            '$' => self.dollar(word, false)?,
            '`' => self.backquoted(word, false)?,
            // Names of files, also alone.
            '*' | '?' => {
                word.is_dynamic = true;
                word.text.push(first);
            }
            '[' | '{' | '}' | ']' => {
                // `{`, `}` and `[` alone are commands.
                word.is_dynamic |= !(word.text.is_empty() && self.is_word_end());
                word.text.push(first);
            }
            '~' if word.text.is_empty() && !word.is_quoted => {
                word.is_dynamic = true;
                word.text.push('~');
            }
            other => word.text.push(other),
        }
        Ok(())
    }

    fn is_word_end(&self) -> bool {
        self.peek(0).is_none_or(|next| matches!(next, ' ' | '\t' | '\n' | ';' | '&' | '|' | ')'))
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), NotUnderstood> {
        word.is_quoted = true;
        loop {
            match self.next().ok_or(NotUnderstood)? {
                '"' => return Ok(()),
                '\\' => match self.next().ok_or(NotUnderstood)? {
                    '\n' => return Err(NotUnderstood),
                    escaped @ ('$' | '`' | '"' | '\\') => word.text.push(escaped),
                    other => word.text.extend(['\\', other]),
                },
                '$' if matches!(self.peek(0), Some('"' | '\'')) => word.text.push('$'),
                '$' => self.dollar(word, true)?,
                '`' => self.backquoted(word, true)?,
                next => word.text.push(next),
            }
        }
    }

    /// Reads an expansion behind its `$`.
    fn dollar(&mut self, word: &mut Word, in_quotes: bool) -> Result<(), NotUnderstood> {
        match self.peek(0) {
            Some('(') if self.peek(1) == Some('(') => self.arithmetic()?,
            Some('(') => {
                self.at += 1;
                self.deeper(|cutter| cutter.list(Some(')')))?;
            }
            Some('{') => {
                self.at += 1;
                self.parameter(in_quotes)?;
            }
            Some('\'') => {
                self.at += 1;
                loop {
                    match self.next().ok_or(NotUnderstood)? {
                        '\'' => break,
                        '\\' => self.at += 1,
                        _ => {}
                    }
                }
            }
            // `$"..."` is translated.
            Some('[' | '"') => return Err(NotUnderstood),
            Some(name) if name.is_alphanumeric() || "_@*#?-$!".contains(name) => {
                self.at += 1;
                while name.is_alphabetic()
                    && self.peek(0).is_some_and(|next| next.is_alphanumeric() || next == '_')
                {
                    self.at += 1;
                }
            }
            _ => {
                word.text.push('$');
                return Ok(());
            }
        }
        word.is_dynamic = true;
        Ok(())
    }

    /// Skips `((...))` with numbers only. The value of a variable is evaluated too, and may be a subscript with a
    /// substitution.
    fn arithmetic(&mut self) -> Result<(), NotUnderstood> {
        let mut open = 0_usize;
        while let Some(next) = self.next() {
            match next {
                '(' => open += 1,
                ')' => {
                    open -= 1;
                    // The inner and the outer parenthesis must close together, or it is a subshell.
                    if open == 1 && self.peek(0) != Some(')') {
                        return Err(NotUnderstood);
                    }
                    if open == 0 {
                        return Ok(());
                    }
                }
                '0'..='9' | ' ' | '+' | '-' | '*' | '/' | '%' | '<' | '>' | '!' | '=' => {}
                _ => return Err(NotUnderstood),
            }
        }
        Err(NotUnderstood)
    }

    /// Reads `${...}` behind its brace: a variable or its length, with a default, or less a pattern. Other forms set the
    /// variable, or evaluate what its value says.
    fn parameter(&mut self, in_quotes: bool) -> Result<(), NotUnderstood> {
        self.deeper(|cutter| {
            let is_length = cutter.peek(0) == Some('#');
            cutter.at += usize::from(is_length);
            let begin = cutter.at;
            while cutter.peek(0).is_some_and(|next| next.is_ascii_alphanumeric() || next == '_') {
                cutter.at += 1;
            }
            let is_special = cutter.at == begin && matches!(cutter.peek(0), Some('@' | '*' | '?' | '$'));
            cutter.at += usize::from(is_special);
            if cutter.at == begin {
                return Err(NotUnderstood);
            }
            match cutter.next().ok_or(NotUnderstood)? {
                '}' => return Ok(()),
                ':' if !is_length && matches!(cutter.peek(0), Some('-' | '+')) => cutter.at += 1,
                '-' | '+' | '#' | '%' | '/' | '^' | ',' if !is_length => {}
                _ => return Err(NotUnderstood),
            }
            let mut word = Word::default();
            loop {
                match cutter.next().ok_or(NotUnderstood)? {
                    '}' => return Ok(()),
                    '<' | '>' if cutter.peek(0) == Some('(') => return Err(NotUnderstood),
                    // Whether it quotes there depends on the operator.
                    '\'' if in_quotes => return Err(NotUnderstood),
                    next @ ('\\' | '\'' | '"' | '$' | '`') => cutter.part_of_word(next, &mut word)?,
                    '[' => return Err(NotUnderstood),
                    _ => {}
                }
            }
        })
    }

    fn backquoted(&mut self, word: &mut Word, in_quotes: bool) -> Result<(), NotUnderstood> {
        word.is_dynamic = true;
        let mut inside = String::new();
        loop {
            match self.next().ok_or(NotUnderstood)? {
                '`' => break,
                '\\' => match self.next().ok_or(NotUnderstood)? {
                    escaped @ ('$' | '`' | '\\') => inside.push(escaped),
                    // The shell takes this backslash away first.
                    '"' if in_quotes => return Err(NotUnderstood),
                    other => inside.extend(['\\', other]),
                },
                next => inside.push(next),
            }
        }
        self.deeper(|cutter| cut_into(&inside, cutter.depth, cutter.found))
    }

    fn end_word(&mut self, reading: &mut Reading) -> Result<(), NotUnderstood> {
        let Some(word) = reading.word.take() else { return Ok(()) };
        if std::mem::take(&mut reading.is_target) {
            return Ok(());
        }
        if reading.is_for {
            reading.for_words += 1;
            match reading.for_words {
                // `for PATH in .` changes which program a name means; variables of scripts are lower-case.
                1 => reading.command.has_more |= word.text.chars().any(|next| next.is_ascii_uppercase()),
                // `for x do` is a list of commands already.
                2 if word.text != "in" => return Err(NotUnderstood),
                _ => {}
            }
            return Ok(());
        }
        if reading.command.words.is_empty() {
            let is_bare = !word.is_quoted && !word.is_dynamic;
            if is_bare && UNKNOWN.contains(&word.text.as_str()) {
                return Err(NotUnderstood);
            }
            if is_bare && word.text == "for" {
                reading.is_for = true;
                return Ok(());
            }
            if is_bare && RESERVED.contains(&word.text.as_str()) {
                return Ok(());
            }
            if is_assignment(&word.text) {
                if evaluates_subscript(&word) {
                    return Err(NotUnderstood);
                }
                reading.command.has_more = true;
                return Ok(());
            }
        }
        reading.command.words.push((!word.is_dynamic).then_some(word.text));
        Ok(())
    }

    fn end_command(&mut self, reading: &mut Reading) -> Result<(), NotUnderstood> {
        self.end_word(reading)?;
        let Reading { command, is_target, .. } = std::mem::take(reading);
        if is_target {
            return Err(NotUnderstood);
        }
        if command != SimpleCommand::default() {
            self.found.push(command);
        }
        Ok(())
    }
}

/// Returns whether the subscript of an assignment is more than a number: it is evaluated, with substitutions in the
/// variables that it names.
fn evaluates_subscript(word: &Word) -> bool {
    let name = word.text.split('=').next().unwrap_or_default();
    let subscript = name.split_once('[').map(|(_, rest)| rest.split(']').next().unwrap_or_default());
    subscript.is_some_and(|subscript| word.is_dynamic || !subscript.chars().all(|next| next.is_ascii_digit()))
}

/// Returns whether a first word sets a variable: `name=`, `name+=` or `name[...]=`.
fn is_assignment(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split('[').next().unwrap_or_default();
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|next| next.is_ascii_alphanumeric() || next == '_')
}
