//! `hail top`: the node's peers, paths, calls and rates, once a second, until `q` or Ctrl-C.

mod rates;
mod view;

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use hailwire::{
    Client,
    admin::{self, StatusRequest, method},
};
use hailwire_terminal::failure::CommandFailure;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
};
use tokio::sync::mpsc;

use super::{CommandContext, connect};
use rates::{PeerOrder, TopRates};

/// How often the node is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Key presses that wait to be handled.
const QUEUED_KEYS: usize = 64;

pub(super) async fn run(run: &CommandContext) -> Result<(), CommandFailure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(CommandFailure::usage("`hail top` needs a terminal")
            .hint("`hail status --json` says the same once, for programs"));
    }
    let client = connect::attach(run).await?;
    let first = ask(&client).await?;
    let mut rates = TopRates::default();
    rates.handle_status(Instant::now(), first);
    let keys = read_keys();
    let terminal = ratatui::try_init()
        .map_err(|error| CommandFailure::io("cannot use the terminal", &error))?;
    let done = show(terminal, &client, rates, keys).await;
    // The failure is printed after it, on the usual screen.
    ratatui::restore();
    done
}

async fn ask(client: &Client) -> Result<admin::NodeStatus, CommandFailure> {
    let request = StatusRequest { measure: true };
    Ok(client.admin(method::STATUS, &request).await?)
}

/// Draws until the user has seen enough, or the node is gone.
async fn show(
    mut terminal: DefaultTerminal,
    client: &Client,
    mut rates: TopRates,
    mut keys: mpsc::Receiver<Event>,
) -> Result<(), CommandFailure> {
    let mut ticks = tokio::time::interval(ASK_EVERY);
    loop {
        terminal
            .draw(|frame| view::draw(frame, &rates))
            .map_err(|error| CommandFailure::io("cannot draw on the terminal", &error))?;
        tokio::select! {
            _ = ticks.tick() => rates.handle_status(Instant::now(), ask(client).await?),
            key = keys.recv() => match key {
                Some(event) if !handle(&event, &mut rates) => return Ok(()),
                Some(_) => {}
                // Stdin has ended.
                None => return Ok(()),
            },
        }
    }
}

/// Does what a key asks for; false where it ends the command.
fn handle(event: &Event, rates: &mut TopRates) -> bool {
    let Event::Key(key) = event else {
        return true;
    };
    if key.kind != KeyEventKind::Press {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('s') => rates.set_order(rates.order().next()),
        KeyCode::Char('t') => rates.set_order(PeerOrder::Traffic),
        KeyCode::Char('n') => rates.set_order(PeerOrder::Name),
        KeyCode::Char('p') => rates.set_order(PeerOrder::Ping),
        KeyCode::Down | KeyCode::Char('j') => rates.scroll(1),
        KeyCode::Up | KeyCode::Char('k') => rates.scroll(-1),
        KeyCode::PageDown => rates.scroll(10),
        KeyCode::PageUp => rates.scroll(-10),
        _ => {}
    }
    true
}

/// Reads the terminal on a thread of its own, which ends with the process.
fn read_keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(QUEUED_KEYS);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    fn press(code: KeyCode, modifiers: KeyModifiers, rates: &mut TopRates) -> bool {
        handle(&Event::Key(KeyEvent::new(code, modifiers)), rates)
    }

    #[test]
    fn keys_sort_and_end() {
        let mut rates = TopRates::default();
        let plain = KeyModifiers::NONE;
        assert!(press(KeyCode::Char('p'), plain, &mut rates));
        assert_eq!(rates.order(), PeerOrder::Ping);
        assert!(press(KeyCode::Char('s'), plain, &mut rates));
        assert_eq!(rates.order(), PeerOrder::Traffic);
        assert!(press(KeyCode::Char('x'), plain, &mut rates));
        assert!(press(KeyCode::Char('c'), plain, &mut rates));
        assert!(!press(
            KeyCode::Char('c'),
            KeyModifiers::CONTROL,
            &mut rates
        ));
        assert!(!press(KeyCode::Char('q'), plain, &mut rates));
        assert!(handle(&Event::Resize(80, 24), &mut rates));
    }
}
