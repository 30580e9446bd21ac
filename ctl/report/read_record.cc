// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/read_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "common/error.h"
#include "common/json.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "ctl/number_texts.h"
#include "ctl/report/record_reader.h"

namespace ddprun::report {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ctl::percent_text, ctl::whole_text;
using json_at::at;

constexpr std::size_t kPieceBytes = 256 * 1024;
constexpr std::size_t kFirstBytes = 64 * 1024;  // enough to tell a file's kind
constexpr std::size_t kMostSideBytes = std::size_t{16} << 20;
constexpr std::size_t kMostFiles = 100'000;
constexpr double kNearSeconds = 30 * 86'400.0;  // clocks of one job differ by less
constexpr std::size_t kMostJobsNamed = 8;       // most jobs that an error names
constexpr std::size_t kMostEpochs = 10'000, kMostOutputLines = 20;

struct File {
  std::string path;
  timespec changed{};
  std::optional<EventKeys> events = {};  // of the file's first event
};

// Throws for a given path that can't be read: the user can name another.
[[noreturn]] void refuse(const std::string& path, int error) {
  throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": " + errno_text(error));
}

class Opened {
 public:
  explicit Opened(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (!fd_) refuse(path, errno);
  }
  // Returns the next piece. Empty: the file's end.
  std::string_view read(std::string& buffer) {
    ssize_t size = -1;
    do {
      size = ::read(fd_.get(), buffer.data(), buffer.size());
    } while (size < 0 && errno == EINTR);
    if (size < 0) refuse(path_, errno);
    return {buffer.data(), static_cast<std::size_t>(size)};
  }

 private:
  const std::string path_;
  const UniqueFd fd_;
};

std::string beginning_of(const std::string& path, std::size_t most) {
  Opened file(path);
  std::string buffer(kPieceBytes, '\0'), text;
  while (text.size() < most) {
    const std::string_view piece = file.read(buffer);
    if (piece.empty()) break;
    text += piece.substr(0, most - text.size());
  }
  return text;
}

bool has_ending(const fs::path& path) {
  return path.extension() == ".json" || path.extension() == ".jsonl";
}

// Whether the name is one that ddprun gives to files of events in a job's log directory.
bool is_event_file(const fs::path& path) {
  return path.extension() == ".jsonl" && path.filename().string().starts_with("events.");
}

// Adds the files of `directory` that `is_wanted` takes. Adds its subdirectories to `deeper`, unless
// that is null.
std::error_code add_files(const fs::path& directory, bool (*is_wanted)(const fs::path&),
                          std::vector<std::string>& files, std::vector<fs::path>* deeper) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (files.size() >= kMostFiles) break;
    std::error_code ignored;
    if (is_wanted(at->path()) && at->is_regular_file(ignored)) {
      files.push_back(at->path());
    } else if (deeper != nullptr && at->is_directory(ignored)) {
      deeper->push_back(at->path());
    }
  }
  return error;
}

std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    std::vector<fs::path> deeper;
    error = add_files(path, has_ending, inside, &deeper);
    if (error) refuse(path, error.value());
    // With --log-dir each node's job has a directory there. Those of other users may be unreadable.
    for (const fs::path& each : deeper) add_files(each, is_event_file, inside, nullptr);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  // A file that is named twice counts once.
  std::set<std::string> known;
  std::erase_if(files, [&](const std::string& path) {
    std::error_code ignored;
    const fs::path canonical = fs::weakly_canonical(path, ignored);
    return !known.insert(ignored ? path : canonical.string()).second;
  });
  return files;
}

File looked_at(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) refuse(path, errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, path + " is no file and no directory");
  }
  File file{.path = path, .changed = info.st_mtim};
  LineSplitter lines([&](std::string_view line) {
    if (!file.events) file.events = RecordReader::event_keys(line);
  });
  lines.add(beginning_of(path, kFirstBytes));
  return file;
}

// Returns the earliest time, without nodes whose clock is far from most others'.
double origin_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double middle = times[times.size() / 2];
  return *std::find_if(times.begin(), times.end(),
                       [&](double each) { return middle - each <= kNearSeconds; });
}

void read_events(const std::string& path, RecordReader& reader) {
  Opened file(path);
  std::string buffer(kPieceBytes, '\0');
  LineSplitter lines([&](std::string_view line) { reader.line(line); });
  for (;;) {
    const std::string_view piece = file.read(buffer);
    if (piece.empty()) break;
    lines.add(piece);
  }
  lines.end();
}

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

void add_text(NamedTexts& facts, const char* name, const std::string& text) {
  if (!text.empty()) facts.emplace_back(name, text);
}

void add_count(NamedTexts& facts, const char* name, std::optional<std::int64_t> count) {
  if (count) facts.emplace_back(name, whole_text(*count));
}

NamedTexts failure_facts(const json::value& failure) {
  NamedTexts facts;
  add_text(facts, "host", text_at(failure, "host"));
  add_count(facts, "rank", count_at(failure, "global_rank"));
  add_count(facts, "node rank", count_at(failure, "node_rank"));
  if (const auto pid = count_at(failure, "pid")) facts.emplace_back("pid", std::to_string(*pid));
  add_count(facts, "exit code", count_at(failure, "exit_code"));
  add_text(facts, "signal", text_at(failure, "signal_name"));
  add_text(facts, "memory", text_at(failure, "out_of_memory"));
  add_text(facts, "operation", text_at(failure, "operation"));
  add_text(facts, "note", text_at(failure, "note", 4096));
  add_text(facts, "ended at", text_at(failure, "ended_at"));
  return facts;
}

// Reads `ddprun --report`. nullopt: the object is another one.
std::optional<EndReport> end_report_of(const json::value& object) {
  const json::value& job = at(object, "job");
  if (!job.is_object() || at(object, "written_by").is_null() || at(object, "state").is_null()) {
    return std::nullopt;
  }
  EndReport report{.job = text_at(job, "id"),
                   .state = text_at(object, "state", 64),
                   .reason = text_at(object, "reason", 4096),
                   .program = text_at(job, "program"),
                   .began = text_at(object, "began_at", 40),
                   .ended = text_at(object, "ended_at", 40),
                   .exit_code = count_at(object, "exit_code"),
                   .seconds = number_at(object, "seconds"),
                   .rounds = count_at(object, "rounds").value_or(0),
                   .victims = texts_at(object, "victims", kMostOutputLines),
                   .excluded = texts_at(object, "excluded", kMostOutputLines)};
  if (report.job.empty()) return std::nullopt;
  const json::value& failure = at(object, "first_failure");
  report.failure = failure_facts(failure);
  report.last_lines = texts_at(failure, "last_lines", kMostOutputLines);
  if (report.last_lines.empty()) report.last_lines = texts_at(failure, "stack", kMostOutputLines);
  return report;
}

// Reads `train --json`. nullopt: the object is another one.
std::optional<TrainSummary> train_summary_of(const json::value& object) {
  const json::value& epochs = at(object, "epochs");
  if (!epochs.is_array() || at(object, "world_size").is_null()) return std::nullopt;
  TrainSummary summary;
  for (const json::value& keys : epochs.get_array()) {
    if (!keys.is_object() || summary.epochs.size() == kMostEpochs) continue;
    summary.epochs.push_back({.epoch = count_at(keys, "epoch").value_or(0),
                              .train_loss = number_at(keys, "train_loss"),
                              .test_loss = number_at(keys, "test_loss"),
                              .test_accuracy = number_at(keys, "test_accuracy"),
                              .samples_per_second = number_at(keys, "samples_per_second")});
  }
  add_text(summary.facts, "backend", text_at(object, "backend"));
  add_text(summary.facts, "device", text_at(object, "device"));
  add_text(summary.facts, "data", text_at(object, "data"));
  add_text(summary.facts, "mode", text_at(object, "mode"));
  add_text(summary.facts, "compression", text_at(object, "compress"));
  add_count(summary.facts, "first step", count_at(object, "first_step"));
  add_count(summary.facts, "last step", count_at(object, "last_step"));
  if (const auto accuracy = number_at(object, "test_accuracy");
      accuracy && !summary.epochs.empty()) {
    summary.facts.emplace_back("test accuracy", percent_text(*accuracy));
  }
  return summary;
}

// Null: the file isn't JSON.
json::value side_value(const File& file) {
  boost::system::error_code error;
  return parsed_json(beginning_of(file.path, kMostSideBytes), error);
}

// Reads the files that have no events. Each has one object, which may be foreign.
void read_side_files(std::vector<File>& files, Record& record) {
  // The file that was written last counts.
  std::stable_sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::pair(a.changed.tv_sec, a.changed.tv_nsec) >
           std::pair(b.changed.tv_sec, b.changed.tv_nsec);
  });
  for (const File& file : files) {
    if (file.events) continue;
    const std::string shown = clean_text(file.path);
    const json::value object = side_value(file);
    auto end = end_report_of(object);
    auto train = train_summary_of(object);
    if (end && !record.job.empty() && end->job != record.job) {
      ++record.other_jobs[end->job];
      record.passed_over.push_back(shown + ": --report of another job");
    } else if (end) {
      record.sources.push_back({.path = shown, .what = "--report of a node"});
      if (!record.end_report) record.end_report = std::move(end);
    } else if (train && !record.train) {
      record.sources.push_back({.path = shown, .what = "train --json"});
      record.train = std::move(train);
    } else if (train) {
      record.passed_over.push_back(shown + ": an older train --json");
    } else {
      record.passed_over.push_back(shown + ": nothing of a job's record");
    }
  }
}

// Returns the job of the first file that has one. Empty: none has.
std::string job_of(const std::vector<File>& files) {
  for (const File& file : files) {
    if (file.events) return file.events->job;
  }
  for (const File& file : files) {
    if (const auto end = end_report_of(side_value(file))) return end->job;
  }
  return "";
}

std::string named(const Record& record, bool with_own) {
  std::set<std::string> jobs;
  if (with_own) jobs.insert(record.job);
  for (const auto& [job, lines] : record.other_jobs) jobs.insert(job);
  return first_listed(std::vector(jobs.begin(), jobs.end()), kMostJobsNamed);
}

bool has_own(const Record& record) {
  return record.last_word > 0 || !record.nodes.empty() || record.end_report;
}

}  // namespace

void LineSplitter::keep(std::string_view part) {
  begun_ += part.substr(0, std::min(part.size(), kMostLineBytes - begun_.size()));
}

void LineSplitter::add(std::string_view piece) {
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    if (end == std::string_view::npos) return keep(piece);
    if (begun_.empty() && end <= kMostLineBytes) {
      take_(piece.substr(0, end));
    } else {
      keep(piece.substr(0, end));
      take_(begun_);
      begun_.clear();
    }
    piece.remove_prefix(end + 1);
  }
}

void LineSplitter::end() {
  if (!begun_.empty()) take_(begun_);
  begun_.clear();
}

Record read_record(const std::vector<std::string>& paths, const std::string& job) {
  std::vector<File> files;
  for (const std::string& path : files_of(paths)) files.push_back(looked_at(path));
  Record record;
  record.job = job.empty() ? job_of(files) : clean_text(job);
  std::vector<double> times, others;
  for (const File& file : files) {
    if (file.events) (file.events->job == record.job ? times : others).push_back(file.events->time);
  }
  if (times.empty()) times = others;  // no file begins with an event of this job
  if (!times.empty()) record.origin = origin_of(std::move(times));
  RecordReader reader(record);
  for (const File& file : files) {
    if (!file.events) continue;
    reader.file({.path = clean_text(file.path), .what = "events"});
    read_events(file.path, reader);
  }
  read_side_files(files, record);
  if (record.job.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("no record of a job in ", clean_text(paths.front()),
                       paths.size() > 1 ? " and the others" : "",
                       ": ddprun --events and --report write one (docs/run-report.md)"));
  }
  if (!has_own(record)) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("no record of job ", record.job, " there, but of: ", named(record, false)));
  }
  if (job.empty() && !record.other_jobs.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("records of several jobs: ", named(record, true), "; say which with --job ID"));
  }
  return record;
}

}  // namespace ddprun::report
