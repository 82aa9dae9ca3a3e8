//! `http.md`, from the OpenAPI document that the server sends.

use std::fmt::Write;

use serde_json::Value;

/// Every operation with the fields of its body and its reply.
pub(super) fn page() -> String {
    let document = serve::openapi();
    let mut page = String::from(
        "# HTTP API\n\n\
         Generated from the document that a server sends at `/openapi.json`. How to run a server \
         and what\nthe fields do: [Serve](../how-to/serve.md).\n\n\
         ## Operations\n\n| operation | | body | reply |\n|---|---|---|---|\n",
    );
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            let _ = writeln!(
                page,
                "| `{} {path}` | {} | {} | {} |",
                method.to_uppercase(),
                text(&operation["summary"]),
                schema_link(&operation["requestBody"]["content"]),
                schema_link(&operation["responses"]["200"]["content"]),
            );
        }
    }
    let schemas = &document["components"]["schemas"];
    for (name, schema) in schemas.as_object().into_iter().flatten() {
        let _ = write!(page, "\n## {name}\n\n| field | type | meaning |\n|---|---|---|\n");
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let required = if required.contains(&field.as_str()) { " (required)" } else { "" };
            let _ = writeln!(
                page,
                "| `{field}`{required} | {} | {} |",
                kind(property),
                text(&property["description"]),
            );
        }
    }
    page
}

/// A link to the schema of a body, if it is a named one.
fn schema_link(content: &Value) -> String {
    let Some((media, body)) = content.as_object().and_then(|content| content.iter().next()) else {
        return String::new();
    };
    match schema_name(&body["schema"]) {
        Some(name) => format!("[{name}](#{})", name.to_lowercase()),
        None if media == "application/json" => "JSON".to_owned(),
        None => "text".to_owned(),
    }
}

fn schema_name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// The type of a property: its values, its schema, or its JSON types.
fn kind(property: &Value) -> String {
    if let Some(values) = property["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .filter(|value| !value.is_null())
            .map(|value| format!("`{}`", value.as_str().unwrap_or_default()))
            .collect();
        return values.join(", ");
    }
    if let Some(name) = schema_name(property) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let alternatives = property["anyOf"].as_array().or(property["oneOf"].as_array());
    if let Some(alternatives) = alternatives {
        let kinds = alternatives.iter().filter(|schema| schema["type"] != "null").map(kind);
        let mut kinds: Vec<String> = kinds.filter(|kind| !kind.is_empty()).collect();
        kinds.dedup();
        return kinds.join(" or ");
    }
    if let Some(constant) = property["const"].as_str() {
        return format!("`{constant}`");
    }
    if property["type"] == "array" {
        return format!("array of {}", kind(&property["items"]));
    }
    match &property["type"] {
        Value::Array(kinds) => {
            let kinds: Vec<&str> =
                kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect();
            kinds.join(" or ")
        }
        kind => kind.as_str().unwrap_or_default().to_owned(),
    }
}

/// A description in one cell.
fn text(value: &Value) -> String {
    let words: Vec<&str> = value.as_str().unwrap_or_default().split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}
