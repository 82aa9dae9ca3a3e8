//! stub until the branch lands
#[derive(Clone, Debug)]
pub struct Example { pub question: String, pub steps: Vec<String>, pub answer: String }
impl From<crate::corpus::Problem> for Example {
    fn from(p: crate::corpus::Problem) -> Self {
        Self { question: p.question, steps: p.steps.iter().map(|s| format!("<<{}{}{}={}>>", s.left, s.op.sign(), s.right, s.result)).collect(), answer: p.answer.to_string() }
    }
}
