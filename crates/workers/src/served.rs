//! What a worker says it serves.

use std::sync::Arc;

/// What is known of a worker's models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Models {
    /// It has not been asked yet, so nothing can be routed to it by name.
    Unread,
    /// It was asked and gave no list that could be read: it serves any name.
    Any,
    /// It serves these names.
    Named(Vec<ServedModel>),
}

/// One entry of a worker's `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The name that requests give.
    pub id: String,
    /// The base model's name, for a LoRA adapter.
    pub parent: Option<String>,
    /// Where the weights come from. Several names of one base model share it.
    pub root: Option<String>,
    /// The entry as the worker gave it, JSON text.
    pub entry: String,
}

impl ServedModel {
    /// What tells base models apart: two names with one root are one base model. `None` for an adapter.
    pub fn base(&self) -> Option<&str> {
        match self.parent {
            Some(_) => None,
            None => Some(self.root.as_deref().unwrap_or(&self.id)),
        }
    }
}

impl Models {
    /// Whether what was read before and what is read now cannot be of one engine: it has other base models. Adapters
    /// come and go.
    pub(crate) fn is_other_engine_than(&self, now: &Self) -> bool {
        match (self, now) {
            (Self::Named(old), Self::Named(new)) => {
                !old.iter().filter_map(ServedModel::base).eq(new.iter().filter_map(ServedModel::base))
            }
            _ => false,
        }
    }

    /// Whether a request for this name may go there.
    pub fn serves(&self, name: &str) -> bool {
        match self {
            Self::Unread => false,
            Self::Any => true,
            Self::Named(served) => served.iter().any(|model| model.id == name),
        }
    }
}

/// What all workers together serve, in slot order.
#[derive(Default)]
pub(crate) struct Catalogue {
    /// Each name once.
    pub(crate) names: Vec<Arc<str>>,
    /// Each base model once, with the first of its names.
    pub(crate) bases: Vec<(String, Arc<str>)>,
}

impl Catalogue {
    /// Of what each worker serves.
    pub(crate) fn of(models: &[Arc<Models>]) -> Self {
        let mut catalogue = Self::default();
        for models in models {
            if let Models::Named(served) = &**models {
                served.iter().for_each(|model| catalogue.add(model));
            }
        }
        catalogue
    }

    fn add(&mut self, model: &ServedModel) {
        let known = self.names.iter().find(|name| ***name == *model.id).cloned();
        let name = known.unwrap_or_else(|| {
            let name: Arc<str> = model.id.as_str().into();
            self.names.push(Arc::clone(&name));
            name
        });
        if let Some(base) = model.base()
            && !self.bases.iter().any(|(known, _)| known == base)
        {
            self.bases.push((base.to_owned(), name));
        }
    }
}
