//! A checker for the part of JSON Schema that our OpenAPI description uses. A word it does not know
//! is an error, so that no promise of the description goes unchecked.

use serde_json::Value;

/// Says what is wrong with `value`, if anything.
pub fn check(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let schema_object = schema.as_object().ok_or("a schema is not an object")?;
    if schema["nullable"] == true && value.is_null() {
        return Ok(());
    }
    for (word, rule) in schema_object {
        let wrong = || Err(format!("{value} breaks {word}: {rule}"));
        match word.as_str() {
            "description" | "example" | "nullable" | "default" => {}
            "$ref" => {
                let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#'));
                check(value, target.ok_or("a reference leads nowhere")?, root)?;
            }
            "type" if !is_type(value, rule.as_str().unwrap()) => return wrong(),
            "type" => {}
            "enum" if !rule.as_array().unwrap().contains(value) => return wrong(),
            "enum" => {}
            "minimum" if value.as_i64() < rule.as_i64() => return wrong(),
            "minimum" => {}
            "required" => {
                for field in rule.as_array().unwrap() {
                    if value.get(field.as_str().unwrap()).is_none() {
                        return wrong();
                    }
                }
            }
            "properties" => {
                for (name, inner) in rule.as_object().unwrap() {
                    if let Some(field) = value.get(name) {
                        check(field, inner, root).map_err(|e| format!("{name}: {e}"))?;
                    }
                }
            }
            "additionalProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    let known = schema["properties"].get(name).is_some();
                    match rule {
                        Value::Bool(false) if !known => {
                            return Err(format!("{name} is not described"));
                        }
                        Value::Object(_) if !known => {
                            check(field, rule, root).map_err(|e| format!("{name}: {e}"))?;
                        }
                        _ => {}
                    }
                }
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(item, rule, root)?;
                }
            }
            _ => return Err(format!("the checker does not know '{word}'")),
        }
    }
    Ok(())
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => false,
    }
}

#[test]
fn the_checker_can_say_no() {
    let schema = serde_json::json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": { "a": { "type": "integer", "minimum": 0 } }
    });
    let says = |value: Value| check(&value, &schema, &schema);
    assert!(says(serde_json::json!({"a": 1})).is_ok());
    for bad in [
        serde_json::json!({}),
        serde_json::json!({"a": -1}),
        serde_json::json!({"a": "1"}),
        serde_json::json!({"a": 1, "b": 2}),
        serde_json::json!([]),
    ] {
        assert!(says(bad.clone()).is_err(), "{bad}");
    }
    assert!(check(&Value::Null, &serde_json::json!({"maximum": 1}), &schema).is_err());
}
