-- What a caller's command has written while it runs, for those who follow it: put there
-- by whoever holds the session, read by any process. When the command is over its answer
-- has the whole, and these rows go.
create table exec_output (
    org_id uuid not null,
    session_id uuid not null,
    operation_id uuid not null,
    stream text not null,
    -- Bytes of the text before it.
    position bigint not null,
    content text not null,
    -- Bytes that the command had written up to its end: what is no text is replaced by
    -- something longer.
    written bigint not null,
    primary key (org_id, session_id, operation_id, stream, position),
    constraint exec_output_operation foreign key (org_id, session_id, operation_id)
        references operation on delete cascade,
    constraint exec_output_stream check (stream in ('stdout', 'stderr'))
);
call sojourn_protect('exec_output');
