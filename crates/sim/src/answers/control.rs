//! Routes that change the worker: what changes, and what is answered.

use serde_json::Value;

use crate::answer::{Answer, quoted};
use crate::gates::Stage;
use crate::lock::Held;
use crate::options::Lora;
use crate::request::Request;
use crate::routes::ControlRoute;
use crate::state::{Pause, State};

pub(super) fn answer(state: &State, kind: ControlRoute, request: &Request<'_>) -> Answer {
    match kind {
        ControlRoute::ResetPrefixCache => {
            state.clear_cache();
            Answer::json(200, r#"{"success":true}"#)
        }
        ControlRoute::ResetMmCache | ControlRoute::ResetEncoderCache => {
            Answer::json(200, r#"{"success":true}"#)
        }
        ControlRoute::Sleep => {
            let level = request.query("level").and_then(|level| level.parse().ok()).unwrap_or(1u8);
            state.sleep();
            state.clear_cache();
            Answer::json(200, format!(r#"{{"status":"sleeping","level":{level}}}"#))
        }
        ControlRoute::WakeUp => {
            state.wake(request.query("tags"));
            Answer::json(200, r#"{"status":"awake","tags":null}"#)
        }
        ControlRoute::Pause => pause(state, request),
        ControlRoute::Resume => {
            *state.pause.held() = Pause::No;
            Answer::json(200, r#"{"status":"resumed"}"#)
        }
        ControlRoute::CollectiveRpc => Answer::json(200, r#"{"results":[null]}"#),
        ControlRoute::UpdateWeights => {
            state.clear_cache();
            Answer::json(200, r#"{"success":true}"#)
        }
        ControlRoute::Profile | ControlRoute::AbortScaleOut => Answer::empty(200),
        ControlRoute::LoadLora => load_lora(state, request),
        ControlRoute::UnloadLora => unload_lora(state, request),
        ControlRoute::Abort => {
            let ids = field(request, "request_ids").and_then(|ids| ids.as_array().map(Vec::len)).unwrap_or(0);
            Answer::json(200, format!(r#"{{"status":"aborted","aborted":{ids}}}"#))
        }
    }
}

fn pause(state: &State, request: &Request<'_>) -> Answer {
    let mut pause = state.pause.held();
    *pause = match request.query("mode") {
        Some("keep") => Pause::Queue { gate: state.gates.hold(Stage::BeforeHead) },
        _ => Pause::Refuse,
    };
    if request.query("clear_cache") != Some("false") {
        state.clear_cache();
    }
    Answer::json(200, r#"{"status":"paused"}"#)
}

fn field(request: &Request<'_>, name: &str) -> Option<Value> {
    serde_json::from_slice::<Value>(request.body).ok()?.get_mut(name).map(Value::take)
}

fn name(request: &Request<'_>, field_name: &str) -> Option<String> {
    field(request, field_name)?.as_str().map(str::to_owned)
}

fn load_lora(state: &State, request: &Request<'_>) -> Answer {
    let (Some(name), Some(path)) = (name(request, "lora_name"), name(request, "lora_path")) else {
        return Answer::bad_request("Both 'lora_name' and 'lora_path' must be provided.", None);
    };
    let text = format!("Success: LoRA adapter '{name}' added successfully.");
    let mut loras = state.loras.held();
    if loras.iter().any(|lora| lora.name == name) {
        let message = format!("The lora adapter '{name}' has already been loaded.");
        return Answer::bad_request(&message, Some("lora_name"));
    }
    loras.push(Lora { name, path });
    Answer::text(200, text)
}

fn unload_lora(state: &State, request: &Request<'_>) -> Answer {
    let Some(name) = name(request, "lora_name") else {
        return Answer::bad_request("'lora_name' needs to be provided to unload a LoRA adapter.", None);
    };
    let mut loras = state.loras.held();
    let Some(at) = loras.iter().position(|lora| lora.name == name) else {
        let message = format!("The lora adapter {} cannot be found.", quoted(&name));
        return Answer::error(404, "NotFoundError", &message, Some("lora_name"));
    };
    loras.remove(at);
    Answer::text(200, format!("Success: LoRA adapter '{name}' removed successfully."))
}
