"""Archives of skills."""

import io
import tarfile


def skill(name, body=""):
    """Returns the tar archive of a skill."""
    content = f"---\nname: {name}\ndescription: A skill of the contract tests.\n---\n{body}\n".encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("SKILL.md")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
