//! Flags that are given several times: reads their values, each of which may be there once.

use forebay_policy::HashKeyKind;
use forebay_router::Aliases;
use forebay_workers::WorkerUrl;

use crate::cors::Cors;
use crate::given::{Given, Rejected};
use crate::rules::{ALIAS, HASH_SOURCE, ORIGIN, WORKER_URL};

/// Workers, each once.
pub(crate) fn workers(given: Vec<Given>) -> Result<Vec<WorkerUrl>, Rejected> {
    let mut urls = Vec::with_capacity(given.len());
    for one in given {
        let url = WORKER_URL.of("worker-urls", &one)?;
        if urls.contains(&url) {
            return Err(one.reject("worker-urls", format!("{url} is given twice; each worker is given once")));
        }
        urls.push(url);
    }
    Ok(urls)
}

/// Where the key of a request is looked for, each place once.
pub(crate) fn sources(given: &[Given]) -> Result<Vec<HashKeyKind>, Rejected> {
    let mut sources = Vec::with_capacity(given.len());
    for one in given {
        let source = HASH_SOURCE.of("hash-key", one)?;
        if sources.contains(&source) {
            return Err(one.reject("hash-key", format!("{one} is given twice; each source is given once")));
        }
        sources.push(source);
    }
    Ok(sources)
}

/// Whose pages may read answers.
pub(crate) fn cors(given: &[Given]) -> Result<Option<Cors>, Rejected> {
    let origins = given.iter().map(|one| ORIGIN.of("cors-allowed-origins", one));
    Ok(Cors::of(origins.collect::<Result<_, _>>()?))
}

/// Other names of models. The model of one cannot be another: nobody would know how far to go.
pub(crate) fn aliases(given: &[Given]) -> Result<Aliases, Rejected> {
    let mut names: Vec<(String, String)> = Vec::with_capacity(given.len());
    for one in given {
        let (alias, model) = ALIAS.of("model-alias", one)?;
        if names.iter().any(|(known, _)| *known == alias) {
            return Err(
                one.reject("model-alias", format!("{alias} is given twice; each alias is given once"))
            );
        }
        if names.iter().any(|(known, of)| *known == model || *of == alias) {
            return Err(
                one.reject("model-alias", format!("{one} is an alias of an alias; name the model itself"))
            );
        }
        names.push((alias, model));
    }
    Ok(Aliases::new(names))
}
