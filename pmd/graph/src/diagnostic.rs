//! What is wrong with a config, shown as rustc shows it: file, line, caret, reason and fix.
//!
//! A [`Report`] owns the texts it points into ([`Sources`]: the file, each `--set`, each environment variable), so it can
//! be rendered long after the config was dropped.

use std::fmt;

use annotate_snippets::{
    AnnotationKind, Group, Level, Patch, Renderer, Snippet, normalize_untrusted_str,
};

/// Where a text came from. It decides how a value in it ranks, and whether a bad one is refused or ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The TOML file.
    File,
    /// One `--set` of the command line.
    Set,
    /// One environment variable.
    Environment,
}

/// One text that spans point into.
#[derive(Clone, Debug)]
struct Source {
    kind: SourceKind,
    name: String,
    text: String,
}

/// The texts a config was made of.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    sources: Vec<Source>,
}

/// A byte range of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    source: usize,
    start: usize,
    end: usize,
}

impl Sources {
    /// Adds a text and returns the span of all of it. `name` is what reports call it, such as the path of the file.
    pub fn add(
        &mut self,
        kind: SourceKind,
        name: impl Into<String>,
        text: impl Into<String>,
    ) -> Span {
        let text = text.into();
        let end = text.len();
        self.sources.push(Source { kind, name: name.into(), text });
        Span { source: self.sources.len() - 1, start: 0, end }
    }

    /// Where the text under `span` came from.
    pub fn kind(&self, span: Span) -> SourceKind {
        self.sources[span.source].kind
    }

    /// What reports call the source of `span`.
    pub fn name(&self, span: Span) -> &str {
        &self.sources[span.source].name
    }

    /// The text under `span`.
    pub fn text(&self, span: Span) -> &str {
        self.sources[span.source].text.get(span.start..span.end).unwrap_or_default()
    }

    /// All of the text that `span` points into.
    pub fn whole(&self, span: Span) -> &str {
        &self.sources[span.source].text
    }

    /// The line of `span`, from 1.
    pub fn line(&self, span: Span) -> usize {
        let before = &self.sources[span.source].text.as_bytes()[..span.start];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }
}

impl Span {
    /// The part `from..to` of this span, in bytes from its start.
    pub fn part(self, from: usize, to: usize) -> Self {
        let end = self.start.saturating_add(to).min(self.end);
        Self { source: self.source, start: self.start.saturating_add(from).min(end), end }
    }
}

/// Whether a diagnostic stops the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The config is refused.
    Error,
    /// The config is taken, and this deserves a look.
    Warning,
}

/// A way out: a sentence, and where there is one the text to write instead.
#[derive(Clone, Debug)]
struct Help {
    text: String,
    patch: Option<(Span, String)>,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    severity: Severity,
    // Boxed: a diagnostic is the error of many small functions that mostly succeed.
    content: Box<Content>,
}

#[derive(Clone, Debug)]
struct Content {
    title: String,
    at: Option<(Span, String)>,
    context: Vec<(Span, String)>,
    notes: Vec<String>,
    helps: Vec<Help>,
}

impl Diagnostic {
    /// A diagnostic that refuses the config.
    pub fn error(title: impl Into<String>) -> Self {
        Self::new(Severity::Error, title.into())
    }

    /// A diagnostic that lets the config pass.
    pub fn warning(title: impl Into<String>) -> Self {
        Self::new(Severity::Warning, title.into())
    }

    fn new(severity: Severity, title: String) -> Self {
        let content =
            Content { title, at: None, context: Vec::new(), notes: Vec::new(), helps: Vec::new() };
        Self { severity, content: Box::new(content) }
    }

    /// Puts the caret under `span`, with `label` behind it.
    #[must_use]
    pub fn at(mut self, span: Span, label: impl Into<String>) -> Self {
        self.content.at = Some((span, label.into()));
        self
    }

    /// Underlines a second place that has to do with it.
    #[must_use]
    pub fn with(mut self, span: Span, label: impl Into<String>) -> Self {
        self.content.context.push((span, label.into()));
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.content.notes.push(text.into());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.content.helps.push(Help { text: text.into(), patch: None });
        self
    }

    /// Says what to do and shows the TOML to write in place of `span`.
    #[must_use]
    pub fn fix(
        mut self,
        span: Span,
        replacement: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        self.content
            .helps
            .push(Help { text: text.into(), patch: Some((span, replacement.into())) });
        self
    }

    /// Whether it stops the run.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// What is wrong, in one line.
    pub fn title(&self) -> &str {
        &self.content.title
    }

    /// What the caret stands under.
    pub fn span(&self) -> Option<Span> {
        self.content.at.as_ref().map(|(span, _)| *span)
    }

    fn render(&self, sources: &Sources, renderer: &Renderer) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = normalize_untrusted_str(&self.content.title);
        let mut group = Group::with_title(level.primary_title(title));
        for (source, snippet) in self.snippets(sources) {
            let name = normalize_untrusted_str(&sources.sources[source].name);
            group = group.element(snippet.path(name));
        }
        for note in &self.content.notes {
            group = group.element(Level::NOTE.message(normalize_untrusted_str(note)));
        }
        let (mut report, plain) =
            (Vec::new(), self.content.helps.iter().filter(|help| help.patch.is_none()));
        if self.content.at.is_some() {
            for help in plain {
                group = group.element(Level::HELP.message(normalize_untrusted_str(&help.text)));
            }
            report.push(group);
        } else {
            // Without a place there is no margin to hang a help on.
            report.push(group);
            for help in plain {
                report.push(Group::with_title(
                    Level::HELP.secondary_title(normalize_untrusted_str(&help.text)),
                ));
            }
        }
        for help in &self.content.helps {
            if let Some((span, replacement)) = &help.patch {
                let source = &sources.sources[span.source];
                // On a command line the quotes of TOML would have to be quoted themselves.
                let replacement = match source.kind {
                    SourceKind::File => replacement.as_str(),
                    SourceKind::Set | SourceKind::Environment => replacement.trim_matches('"'),
                };
                let patch = Patch::new(span.start..span.end, replacement);
                report.push(
                    Level::HELP
                        .secondary_title(normalize_untrusted_str(&help.text))
                        .element(Snippet::source(&source.text).path(&source.name).patch(patch)),
                );
            }
        }
        renderer.render(&report)
    }

    /// One snippet per source, the caret's first.
    fn snippets<'a>(
        &'a self,
        sources: &'a Sources,
    ) -> Vec<(usize, Snippet<'a, annotate_snippets::Annotation<'a>>)> {
        let mut snippets: Vec<(usize, Snippet<'a, _>)> = Vec::new();
        let primary = self.content.at.iter().map(|place| (AnnotationKind::Primary, place));
        let context = self.content.context.iter().map(|place| (AnnotationKind::Context, place));
        for (kind, (span, label)) in primary.chain(context) {
            let label = normalize_untrusted_str(label);
            let annotation = kind.span(span.start..span.end).label(label);
            match snippets.iter().position(|(source, _)| *source == span.source) {
                Some(at) => {
                    let (source, snippet) = snippets.remove(at);
                    snippets.insert(at, (source, snippet.annotation(annotation)));
                }
                None => {
                    let snippet = Snippet::source(&sources.sources[span.source].text);
                    snippets.push((span.source, snippet.annotation(annotation)));
                }
            }
        }
        snippets
    }
}

/// Everything that is wrong, with the texts it points into. `Display` renders without colour.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The texts that the diagnostics point into.
    pub sources: Sources,
    /// The diagnostics, in the order they were found.
    pub diagnostics: Vec<Diagnostic>,
}

impl Report {
    /// A report of one diagnostic that points nowhere.
    pub fn of(diagnostic: Diagnostic) -> Self {
        Self { sources: Sources::default(), diagnostics: vec![diagnostic] }
    }

    /// Adds a diagnostic.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// How many diagnostics refuse the config.
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// All diagnostics as text, in the order of the places they point at; with terminal colours if `colour`.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut ordered: Vec<&Diagnostic> = self.diagnostics.iter().collect();
        ordered.sort_by_key(|diagnostic| diagnostic.span());
        let rendered: Vec<String> = ordered
            .into_iter()
            .map(|diagnostic| diagnostic.render(&self.sources, &renderer))
            .collect();
        rendered.join("\n\n")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}
