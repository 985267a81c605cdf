//! Lines that are cut, and lines that are not.

use super::*;

/// The commands of a line, each with `?` for unknown words and `+` if it has more than words.
fn shown(line: &str) -> Vec<String> {
    let command = |command: SimpleCommand| {
        let words: Vec<_> = command.words.iter().map(|word| word.as_deref().unwrap_or("?")).collect();
        format!("{}{}", words.join(" "), if command.has_more { " +" } else { "" })
    };
    match cut(line) {
        Ok(commands) => commands.into_iter().map(command).collect(),
        Err(NotUnderstood) => vec!["not understood".to_owned()],
    }
}

#[test]
fn a_line_is_cut_into_its_simple_commands() {
    let cases: &[(&str, &[&str])] = &[
        ("git status", &["git status"]),
        ("cd a && git push; ls | wc -l & pwd || true", &["cd a", "git push", "ls", "wc -l", "pwd", "true"]),
        ("git\tstatus\nls # git push", &["git status", "ls"]),
        ("'git' \"push\" p\\u\\sh ''", &["git push push "]),
        ("echo $(git push)", &["git push", "echo ?"]),
        ("echo \"a $(git push) `rm x`\"", &["git push", "rm x", "echo ?"]),
        ("echo `echo \\`git push\\``", &["git push", "echo ?", "echo ?"]),
        ("diff <(git push) >(rm x)", &["git push", "rm x", "diff ? ?"]),
        ("(git push; ls) | cat", &["git push", "ls", "cat"]),
        ("if true; then git push; else ls; fi", &["true", "git push", "ls"]),
        ("for x in git push; do rm $x; done", &["rm ?"]),
        ("for x in A; do ls; done", &["ls"]),
        ("for PATH in .; do ls; done", &[" +", "ls"]),
        ("echo $((1 == 2)) ${x:-1} ${#x} ${x%.rs} ${@}", &["echo ? ? ? ? ?"]),
        ("git log \\\n  --oneline", &["git log --oneline"]),
        ("$'touch'> x", &["? +"]),
        ("while ! git push; do sleep 1; done", &["git push", "sleep 1"]),
        ("{ git push; }", &["git push"]),
        ("[ -f x ] && ls", &["[ -f x ]", "ls"]),
        ("git status > x 2>&1", &["git status +"]),
        ("git status &> x", &["git status +"]),
        ("git status >| x", &["git status +"]),
        ("> x", &[" +"]),
        ("PATH=/tmp git status", &["git status +"]),
        ("X=1", &[" +"]),
        ("git log --format=x", &["git log --format=x"]),
        ("$CMD push", &["? push"]),
        ("gi{t,x} push", &["? push"]),
        ("ls *.rs ~ a?b", &["ls ? ? ?"]),
        ("*", &["?"]),
        ("git * ; find ?", &["git ?", "find ?"]),
        ("cd d && * push", &["cd d", "? push"]),
        ("echo $'a\\'b' $", &["echo ? $"]),
        ("echo ${x:-$(git push)}", &["git push", "echo ?"]),
        ("echo $((1 + 2)) $((4 * (2 + 3)))", &["echo ? ?"]),
        ("cat <<EOF\ngit push\nEOF\nls", &["cat +", "ls"]),
        ("cat <<-'E' > x; pwd\n\t$(git push)\n\tE\nls", &["cat +", "pwd", "ls"]),
        ("cat <<< word", &["cat +"]),
        ("echo \"$'\" ; git push #'", &["echo $'", "git push"]),
        ("time git push", &["time git push"]),
        ("", &[]),
    ];
    for (line, expected) in cases {
        assert_eq!(shown(line), *expected, "{line}");
    }
}

#[test]
fn what_is_not_understood_is_not_cut() {
    for line in [
        "echo 'open",
        "echo \"open",
        "echo $(open",
        "echo `open",
        "echo )",
        "case x in a) git push;; esac",
        "f() { git push; }",
        "function f { git push; }",
        "a=(1 2)",
        "((x = 1))",
        "echo $((git push); (ls))",
        "echo $[1 + 2]",
        "echo $((PATH = 1))",
        "echo $((x += 1))",
        "echo $((x++))",
        "echo $((x))",
        "echo $(($x))",
        "echo ${x:1:y}",
        "echo ${!x}",
        "echo ${x:?y}",
        "echo $\"x\"",
        "a\\\nb",
        "echo $\\\n(git push)",
        "echo \"$\\\n(git push)\"",
        "cat <\\\n<E\nE\n",
        "for x do git push; done",
        "fo\\\nr x do git push; done",
        ">& -git push",
        "<& -git push",
        "echo <<E $(echo a\ngit push\nE\n)\nE\n",
        &"a;".repeat(1_001),
        "echo ${PATH:=x}",
        "echo \"${PATH=x}\"",
        "cat <<EOF\n$(git push)\nEOF",
        "cat <<EOF\n$[x]\nEOF",
        "a[x]=1",
        "a[$x]=1",
        "cat <<EOF\nopen",
        "echo $(cat <<E) ; ls\ngit push\nE",
        "cat <<E\na\\\nE\n'\nE\ngit push #'",
        "echo \"${x:-'}\" ; git push #'}\"",
        "echo \"`echo \\\"a\\\"`\"",
        "echo ${x@P}",
        "ls >",
        "a\0b",
        &"(".repeat(100_000),
        &"$(".repeat(30_000),
        &"`".repeat(30_001),
    ] {
        assert_eq!(shown(line), ["not understood"], "{line:.40}");
    }
    assert_eq!(shown(&"x".repeat(LINE_BYTES_MAX + 1)), ["not understood"]);
}

#[test]
fn a_wrapper_runs_what_its_words_do_not_say() {
    let is_wrapper = |line: &str| cut(line).expect(line).iter().any(SimpleCommand::is_wrapper);
    for line in [
        "eval x",
        "sh -c x",
        "bash",
        "/bin/bash -ec x",
        "xargs rm",
        "env x",
        "find . -exec rm {} ;",
        "$X",
        "sudo x",
        "[ -v 'a[$(x)]' ]",
        "printf -v PATH .",
        "[[ 'a[$(x)]' -eq 0 ]]",
        "bash /dev/stdin",
        "/lib64/ld-linux-x86-64.so.2 /bin/x",
    ] {
        assert!(is_wrapper(line), "{line}");
    }
    for line in ["git push", "bash build.sh", "find . -name x", "ls"] {
        assert!(!is_wrapper(line), "{line}");
    }
}
