//! Simple commands of a shell command line.
//!
//! Own code: parsers of the whole language recurse as deep as their input, which a model chooses, or are not written in
//! Rust. This one is linear, and gives up on what it does not know: then no rule with a prefix allows the line. The
//! syntax is that of the Bash Reference Manual, 3.1 and 3.2.

#[cfg(test)]
mod tests;

/// Max depth of substitutions and subshells.
const DEPTH_MAX: usize = 16;
/// Max length of a command line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Commands that run others which their arguments or input name.
#[rustfmt::skip]
const WRAPPERS: [&str; 32] = [
    ".", "alias", "builtin", "busybox", "chroot", "command", "compgen", "doas", "enable", "env", "eval", "exec",
    "flock", "hash", "ionice", "mapfile", "nice", "nohup", "parallel", "readarray", "setsid", "source", "ssh",
    "stdbuf", "strace", "sudo", "time", "timeout", "trap", "unshare", "watch", "xargs",
];
const SHELLS: [&str; 7] = ["ash", "bash", "dash", "fish", "ksh", "sh", "zsh"];
/// Options of `find` that run commands or change files.
const FIND_ACTIONS: [&str; 9] =
    ["-delete", "-exec", "-execdir", "-fls", "-fprint", "-fprint0", "-fprintf", "-ok", "-okdir"];
/// Words before which, or after which, a command begins.
const RESERVED: [&str; 12] =
    ["!", "do", "done", "elif", "else", "fi", "if", "then", "until", "while", "{", "}"];
/// Words whose syntax is not cut.
const UNKNOWN: [&str; 4] = ["case", "coproc", "function", "select"];

/// A command without operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SimpleCommand {
    /// Its name and arguments; `None` for a word that is known only when the command runs.
    pub words: Vec<Option<String>>,
    /// Whether it has a redirection, or sets a variable.
    pub has_more: bool,
}

/// The line has syntax that is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUnderstood;

impl SimpleCommand {
    /// Returns whether it may run another command than its words say.
    pub(super) fn is_wrapper(&self) -> bool {
        let Some(Some(name)) = self.words.first() else { return !self.words.is_empty() };
        let arguments = &self.words[1..];
        match name.rsplit('/').next().unwrap_or_default() {
            "find" => arguments.iter().flatten().any(|word| FIND_ACTIONS.contains(&word.as_str())),
            shell if SHELLS.contains(&shell) => match arguments.first() {
                Some(Some(first)) => first.starts_with(['-', '+']),
                Some(None) | None => true,
            },
            name => WRAPPERS.contains(&name),
        }
    }
}

/// Cuts a command line into its simple commands, those of substitutions and subshells included.
pub(super) fn cut(line: &str) -> Result<Vec<SimpleCommand>, NotUnderstood> {
    if line.len() > LINE_BYTES_MAX || line.contains('\0') {
        return Err(NotUnderstood);
    }
    let mut found = Vec::new();
    cut_into(line, 0, &mut found)?;
    Ok(found)
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
    /// Whether its variable was read.
    has_variable: bool,
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
        if self.depth > DEPTH_MAX {
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
                '\\' if self.peek(0) == Some('\n') => self.at += 1,
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
        let is_number =
            |word: &Word| !word.is_quoted && word.text.chars().all(|digit| digit.is_ascii_digit());
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
        // `>&-` closes, and has no target.
        reading.is_target = last != '&' || self.peek(0) != Some('-');
        self.at += usize::from(!reading.is_target);
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
                    ["`", "$(", "${"].iter().any(|sign| line.contains(sign)) || line.ends_with('\\');
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
                '\n' => {}
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
            '*' | '?' | '[' | '{' | '}' | ']' => {
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
                    '\n' => {}
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
            Some('[') => return Err(NotUnderstood),
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

    /// Skips `((...))`, which runs nothing if it has no substitution. One that may set a variable is not understood.
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
                '$' if self.peek(0).is_some_and(|name| name.is_alphanumeric() || name == '_') => {}
                '=' | '!' if self.peek(0) == Some('=') => self.at += 1,
                '+' | '-' if self.peek(0) == Some(next) => return Err(NotUnderstood),
                '=' => return Err(NotUnderstood),
                '$' | '`' | '"' | '\'' | '\\' | '[' | '\n' | ';' => return Err(NotUnderstood),
                _ => {}
            }
        }
        Err(NotUnderstood)
    }

    /// Reads `${...}` behind its brace.
    fn parameter(&mut self, in_quotes: bool) -> Result<(), NotUnderstood> {
        self.deeper(|cutter| {
            let mut word = Word::default();
            loop {
                match cutter.next().ok_or(NotUnderstood)? {
                    // `@P` runs what the value says.
                    '}' if word.text.ends_with("@P") => return Err(NotUnderstood),
                    '}' if sets_variable(&word.text) => return Err(NotUnderstood),
                    '}' => return Ok(()),
                    '<' | '>' if cutter.peek(0) == Some('(') => return Err(NotUnderstood),
                    // Whether it quotes there depends on the operator.
                    '\'' if in_quotes => return Err(NotUnderstood),
                    next @ ('\\' | '\'' | '"' | '$' | '`') => cutter.part_of_word(next, &mut word)?,
                    '[' => return Err(NotUnderstood),
                    next => word.text.push(next),
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
            // `for PATH in .` changes which program a name means; variables of scripts are lower-case.
            let is_variable = !std::mem::replace(&mut reading.has_variable, true);
            reading.command.has_more |=
                is_variable && word.text.chars().any(|next| next.is_ascii_uppercase());
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

/// Returns whether a parameter expansion sets its variable: `name=word` or `name:=word`.
fn sets_variable(expansion: &str) -> bool {
    let rest = expansion.trim_start_matches(|next: char| next.is_ascii_alphanumeric() || next == '_');
    rest.strip_prefix(':').unwrap_or(rest).starts_with('=')
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
