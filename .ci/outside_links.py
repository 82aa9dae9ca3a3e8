"""An mdBook preprocessor: links that leave docs/ become text that names the file in the repository.

mdBook passes [context, book] as JSON on standard input and reads the book from standard output. With
`supports RENDERER` as arguments it asks whether a renderer is supported.
"""
import json
import posixpath
import re
import sys

FENCE = re.compile(r"^(```|~~~).*?^\1", re.S | re.M)
LINK = re.compile(r"(?<!!)\[([^\]\[]*)\]\((\.\.?/[^)\s#]*)(#[^)\s]*)?\)")


def without_outside_links(text, folder):
    def replaced(match):
        path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if path == "docs" or path.startswith("docs/"):
            return match[0]
        name = match[1].strip("`")
        return f"`{path}`" if name in (path, posixpath.basename(path)) else f"{match[1]} (`{path}`)"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(replaced, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(replaced, text[end:])])


def visit(node):
    """Rewrites every chapter below a part of the book's JSON."""
    if isinstance(node, list):
        for item in node:
            visit(item)
    elif isinstance(node, dict):
        if isinstance(node.get("content"), str) and node.get("source_path"):
            folder = posixpath.dirname(node["source_path"])
            node["content"] = without_outside_links(node["content"], folder)
        for item in node.values():
            visit(item)


if __name__ == "__main__" and sys.argv[1:2] != ["supports"]:
    _, book = json.load(sys.stdin)
    visit(book)
    json.dump(book, sys.stdout)
