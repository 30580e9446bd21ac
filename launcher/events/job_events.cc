// SPDX-License-Identifier: Apache-2.0
#include "launcher/events/job_events.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "launcher/events/event_file.h"
#include "launcher/with_host_name.h"

namespace ddprun::launcher {

struct JobEvents::Trouble {
  std::mutex mutex;
  std::string text;       // guarded by mutex; empty: none
  bool was_said = false;  // likewise

  // What is to be said, once.
  std::string take() {
    const std::lock_guard lock(mutex);
    if (text.empty() || std::exchange(was_said, true)) return {};
    return text;
  }
};

namespace {

// By the log thread. The file's name is in `path` from then on.
UniqueFd open_in(agent::LogTree& logs, const std::string& name, std::string& path,
                 std::string& problem) {
  try {
    path = logs.begin_run() + "/" + name;
  } catch (const Error& error) {
    problem = error.what();
    return {};
  }
  UniqueFd file = open_event_file(path);
  if (!file) problem = errno_text(errno);
  return file;
}

UniqueFd open_given(const std::string& path) {
  UniqueFd file = open_event_file(path);
  if (file) return file;
  const std::string why = errno == ENXIO ? "nobody reads it" : errno_text(errno);
  throw Error(ErrorCode::kInvalidArgument, concat("--events=", path, " can't be opened: ", why));
}

}  // namespace

JobEvents::JobEvents(EventFacts facts, Clock::time_point begun, const std::string& path,
                     std::shared_ptr<agent::LogTree> logs, agent::LogWriter& writer,
                     std::function<void(const std::string&)> notice)
    : writer_(writer), trouble_(std::make_shared<Trouble>()), lines_(std::move(facts), begun) {
  // Of the file's owner; a std::function copies what it has.
  struct Place {
    std::string path;
    UniqueFd opened;
  };
  const auto place = std::make_shared<Place>();
  EventFileOptions options;
  if (path.empty()) {
    const std::string name = "events." + lines_.host() + ".jsonl";  // no "/": gethostname's
    place->path = name;
    options.open = [place, logs = std::move(logs), name](std::string& problem) {
      return open_in(*logs, name, place->path, problem);
    };
  } else {
    place->path = with_host_name(path);
    place->opened = open_given(place->path);
    options.open = [place](std::string&) { return std::move(place->opened); };
  }
  options.lost = [place, trouble = trouble_, post = writer.poster(),
                  notice = std::move(notice)](const std::string& why) {
    {
      const std::lock_guard lock(trouble->mutex);
      trouble->text = concat("can't write events to ", place->path, " (", why,
                             "): they are lost until they can be written again; the job goes on");
    }
    post([trouble, notice] {
      if (const std::string text = trouble->take(); !text.empty() && notice) notice(text);
    });
  };
  file_ = writer.open_sink(
      place->path, [options = std::move(options)] { return std::make_unique<EventFile>(options); });
  write(lines_.begin(Moment::now()));
}

void JobEvents::listen(agent::NodeAgentEvents& events) {
  events.worker_ended = [this](const agent::WorkerExit& exit) {
    write(lines_.worker_ended(exit, Moment::now()));
  };
  events.round_over = [this](const membership::agent_action::RoundOver& over) {
    write(lines_.round_over(over, Moment::now()));
  };
  events.workers_gone = [this] { lines_.workers_gone(Moment::now()); };
  events.node_read = [this](const membership::NodeReport& report) {
    write(lines_.node_read(report, Moment::now()));
  };
  events.progressed = [this](const std::vector<agent::RankProgress>& ranks) {
    write(lines_.progressed(ranks, Moment::now()));
  };
}

void JobEvents::round_began(const membership::StartRound& round) {
  write(lines_.round_began(round, Moment::now()));
}

void JobEvents::workers_run(const std::vector<pid_t>& pids) {
  write(lines_.workers_run(pids, Moment::now()));
}

void JobEvents::ended(const membership::JobEnd& verdict) {
  queue(lines_.ended(verdict, Moment::now()));  // there is room for the last one
}

std::string JobEvents::unsaid() const { return trouble_->take(); }

void JobEvents::write(const std::string& lines) {
  if (lines.empty()) return;
  if (file_->is_full()) {
    num_left_out_ += static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
    return;
  }
  queue(lines);
}

void JobEvents::queue(const std::string& lines) {
  if (const auto missing = std::exchange(num_left_out_, 0); missing > 0) {
    file_->append(std::to_string(missing) + "\n");
  }
  file_->append(lines);
  writer_.flush();
}

}  // namespace ddprun::launcher
