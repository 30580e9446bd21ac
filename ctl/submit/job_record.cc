// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/job_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "common/clock.h"
#include "common/ending.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/json.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/process_stat.h"
#include "common/regular_file.h"
#include "common/unique_fd.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

constexpr off_t kMaxRecordBytes = off_t{16} << 20;

std::filesystem::path records_root(const Environment& environment) {
  const auto states = user_directory(environment, env::kXdgStateHome, ".local/state");
  return std::filesystem::path(states.value_or("/.local/state")) / "ddprun/jobs";
}

std::optional<std::string> text_in(const std::filesystem::path& path) {
  const RegularFile file = open_regular_file(path);  // no FIFO, which would block for ever
  if (!file.fd) return std::nullopt;
  std::string text(static_cast<std::size_t>(std::min<off_t>(file.info.st_size, kMaxRecordBytes)),
                   0);
  const ssize_t size = ::pread(file.fd.get(), text.data(), text.size(), 0);
  if (size < 0) return std::nullopt;  // the disk may be broken
  text.resize(static_cast<std::size_t>(size));
  return text;
}

// Writes the file whole or not at all.
void write_whole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = path.string() + ".part";
  std::ofstream file(part);
  file << text << std::flush;
  int problem = file ? 0 : errno;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (!file || error) {
    if (problem == 0) problem = error ? error.value() : errno;
    std::filesystem::remove(part, error);
    throw WriteError(concat("can't write ", path.string(), ": ", errno_text(problem)));
  }
}

std::vector<std::string> to_texts(const json::value& value) {
  std::vector<std::string> texts;
  for (const json::value& each : value.as_array()) texts.emplace_back(each.as_string());
  return texts;
}

std::string to_json(const JobRecord& record) {
  using std::chrono::duration_cast, std::chrono::seconds;
  const json::object all = {
      {"id", record.id},
      {"name", record.name},
      {"host", record.host},
      {"submitted", duration_cast<seconds>(record.submitted.time_since_epoch()).count()},
      {"log", record.log},
      {"exit_file", record.exit_file},
      {"nodes", json::array(record.nodes.begin(), record.nodes.end())},
      {"command", json::array(record.command.begin(), record.command.end())}};
  return json::serialize(all) + "\n";
}

JobRecord record_in(const std::string& written) {
  const json::value all = parsed_json(written);
  const auto text = [&all](const char* key) { return std::string(all.at(key).as_string()); };
  return {
      .id = text("id"),
      .name = text("name"),
      .host = text("host"),
      .submitted = WallTime(std::chrono::seconds(all.at("submitted").to_number<std::int64_t>())),
      .log = text("log"),
      .exit_file = text("exit_file"),
      .nodes = to_texts(all.at("nodes")),
      .command = to_texts(all.at("command"))};
}

// nullopt: there is no record, or it can't be read: then `problem` says why.
std::optional<JobRecord> read_record(const std::filesystem::path& directory, std::string* problem) {
  const std::filesystem::path path = directory / "job.json";
  problem->clear();
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::nullopt;
  const auto text = text_in(path);
  *problem = "its record " + path.string() +
             (text ? " is damaged, or of another version" : " can't be read");
  if (!text) return std::nullopt;
  try {
    JobRecord record = record_in(*text);
    problem->clear();
    return record;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

constexpr std::chrono::milliseconds kLook{200};        // between looks at the file
constexpr std::chrono::milliseconds kAskAfter{1'000};  // between questions whether the job is over

class TailedFile {
 public:
  explicit TailedFile(std::string path) : path_(std::move(path)) {}

  // False: there is no such file.
  bool open() {
    if (file_) return true;
    file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (!file_ && errno != ENOENT) refuse();
    return file_.valid();
  }

  // False: the view has ended.
  bool show_new(const LogView& view) {
    std::vector<char> buffer(65'536);  // on the heap: a stack may be small (ulimit -s)
    while (file_) {
      const ssize_t size = ::read(file_.get(), buffer.data(), buffer.size());
      if (size < 0 && errno != EINTR) refuse();
      if (size == 0) break;
      if (size > 0 && !view.show({buffer.data(), static_cast<std::size_t>(size)})) return false;
    }
    return true;
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::kUnavailable, "can't read " + path_ + ": " + errno_text(errno));
  }

  const std::string path_;
  UniqueFd file_;
};

}  // namespace

RecordedProcess RecordedProcess::of(int pid) {
  return {pid, ddprun::start_ticks(pid).value_or(0), ddprun::boot_id()};
}

bool RecordedProcess::is_alive() const {
  ProcessStat stat;
  return is_of_this_boot() && read_process_stat(pid, &stat) && stat.start_ticks == start_ticks &&
         stat.state != 'Z' && stat.state != 'X';
}

bool RecordedProcess::is_of_this_boot() const { return boot_id == ddprun::boot_id(); }

JobRecords::JobRecords(const Environment& environment) : root_(records_root(environment)) {}

std::filesystem::path JobRecords::directory_of(const std::string& id) const {
  std::string name = id;
  std::replace(name.begin(), name.end(), ':', '-');
  std::replace(name.begin(), name.end(), '/', '_');
  return root_ / name;
}

void JobRecords::add(const JobRecord& record) const {
  const std::filesystem::path directory = directory_of(record.id);
  std::error_code error;
  std::filesystem::create_directories(root_, error);
  if (error) throw WriteError(concat("can't make ", root_.string(), ": ", error.message()));
  const bool is_new = ::mkdir(directory.c_str(), S_IRWXU) == 0;
  if (!is_new && errno != EEXIST)
    throw WriteError(concat("can't make ", directory.string(), ": ", errno_text(errno)));
  try {
    write_whole(directory / "job.json", to_json(record));
  } catch (const Error&) {
    if (is_new) std::filesystem::remove_all(directory, error);
    throw;
  }
}

std::optional<JobRecord> JobRecords::find(const std::string& id) const {
  std::string problem;
  auto record = read_record(directory_of(id), &problem);
  return record && record->id == id ? record : std::nullopt;
}

std::string JobRecords::problem_of(const std::string& id) const {
  std::string problem;
  read_record(directory_of(id), &problem);
  return problem;
}

std::vector<JobRecord> JobRecords::all_of(const std::string& place) const {
  std::vector<JobRecord> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(place + "-")) continue;
    std::string problem;
    auto record = read_record(entry.path(), &problem);
    if (record && record->id.starts_with(place + ":")) records.push_back(std::move(*record));
    if (!problem.empty()) {
      log_warning(place, ":", name.substr(place.size() + 1), " is left out: ", problem);
    }
  }
  std::sort(records.begin(), records.end(), [](const JobRecord& a, const JobRecord& b) {
    return std::tie(b.submitted, b.id) < std::tie(a.submitted, a.id);
  });
  return records;
}

void JobRecords::mark_cancelled(const std::string& id) const {
  write_whole(directory_of(id) / "cancelled", "");
}

bool JobRecords::is_cancelled(const std::string& id) const {
  std::error_code error;
  return std::filesystem::exists(directory_of(id) / "cancelled", error);
}

void JobRecords::add_process(const std::string& id, const RecordedProcess& process) const {
  std::ostringstream text;
  text << process.pid << ' ' << process.start_ticks << ' ' << process.boot_id << '\n';
  write_whole(directory_of(id) / "process", text.str());
}

std::optional<RecordedProcess> JobRecords::process_of(const std::string& id) const {
  std::istringstream text(text_in(directory_of(id) / "process").value_or(""));
  RecordedProcess process;
  text >> process.pid >> process.start_ticks >> process.boot_id;
  return text && process.pid > 0 ? std::optional(process) : std::nullopt;
}

std::string unfinished_exit_file(const std::string& exit_file) { return exit_file + ".part"; }

std::optional<RecordedExit> read_exit_file(const std::string& path) {
  std::istringstream text(text_in(path).value_or(""));
  RecordedExit exit;
  text >> exit.code;
  struct stat info {};
  if (!text || ::stat(path.c_str(), &info) != 0) return std::nullopt;
  exit.at = WallTime(std::chrono::seconds(info.st_mtime));
  return exit;
}

void show_log(const std::string& path, bool follow, const LogView& view,
              const std::function<bool()>& is_over) {
  TailedFile file(path);
  if (!file.open() && !follow) {
    throw Error(ErrorCode::kUnavailable, path + " is not there (yet, or any more)");
  }
  bool was_over = false;
  Clock::time_point asked{};
  for (;;) {
    file.open();
    if (!file.show_new(view) || !follow || was_over) return;
    if (Clock::now() - asked >= kAskAfter) {
      was_over = is_over();  // the job's last output is still read
      asked = Clock::now();
      if (was_over) continue;
    }
    if (!view.pause(kLook)) return;
  }
}

}  // namespace ddprun::submit
