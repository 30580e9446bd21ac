// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/job_record.h"

#include <sys/stat.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/boot_id.h"
#include "common/error.h"
#include "common/process_facts.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

std::filesystem::path records_root(const Environment& environment) {
  if (const auto state = find_variable(environment, "XDG_STATE_HOME")) {
    return std::filesystem::path(*state) / "ddprun/jobs";
  }
  return std::filesystem::path(find_variable(environment, "HOME").value_or("/")) /
         ".local/state/ddprun/jobs";
}

std::optional<std::string> text_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Whole or not at all.
void write_whole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = path.string() + ".part";
  std::ofstream file(part);
  file << text << std::flush;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (!file || error) {
    throw_system_error("writing " + path.string(), error ? error.value() : errno);
  }
}

json::array to_array(const std::vector<std::string>& texts) {
  json::array all;
  for (const std::string& text : texts) all.emplace_back(text);
  return all;
}

std::vector<std::string> to_texts(const json::value& value) {
  std::vector<std::string> texts;
  for (const json::value& each : value.as_array()) texts.emplace_back(each.as_string());
  return texts;
}

std::string to_json(const JobRecord& record) {
  using std::chrono::duration_cast, std::chrono::seconds;
  json::object all;
  all["id"] = record.id;
  all["name"] = record.name;
  all["host"] = record.host;
  all["submitted"] = duration_cast<seconds>(record.submitted.time_since_epoch()).count();
  all["log"] = record.log;
  all["exit_file"] = record.exit_file;
  all["nodes"] = to_array(record.nodes);
  all["command"] = to_array(record.command);
  return json::serialize(all) + "\n";
}

JobRecord record_in(const std::string& text) {
  const json::value all = json::parse(text);
  JobRecord record;
  record.id = std::string(all.at("id").as_string());
  record.name = std::string(all.at("name").as_string());
  record.host = std::string(all.at("host").as_string());
  record.submitted = WallTime(std::chrono::seconds(all.at("submitted").to_number<std::int64_t>()));
  record.log = std::string(all.at("log").as_string());
  record.exit_file = std::string(all.at("exit_file").as_string());
  record.nodes = to_texts(all.at("nodes"));
  record.command = to_texts(all.at("command"));
  return record;
}

std::optional<JobRecord> read_record(const std::filesystem::path& directory) {
  const auto text = text_in(directory / "job.json");
  if (!text) return std::nullopt;
  try {
    return record_in(*text);
  } catch (const std::exception&) {
    return std::nullopt;  // of another version, or damaged
  }
}

}  // namespace

RecordedProcess RecordedProcess::of(int pid) {
  return {pid, ddprun::start_ticks(pid).value_or(0), ddprun::boot_id()};
}

bool RecordedProcess::is_alive() const {
  return boot_id == ddprun::boot_id() && ddprun::start_ticks(pid) == start_ticks;
}

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
  if (error) throw_system_error("making " + root_.string(), error.value());
  if (::mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    throw_system_error("making " + directory.string(), errno);
  }
  write_whole(directory / "job.json", to_json(record));
}

std::optional<JobRecord> JobRecords::find(const std::string& id) const {
  auto record = read_record(directory_of(id));
  return record && record->id == id ? record : std::nullopt;
}

std::vector<JobRecord> JobRecords::all_of(const std::string& place) const {
  std::vector<JobRecord> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root_, error)) {
    if (auto record = read_record(entry.path()); record && record->id.starts_with(place + ":")) {
      records.push_back(std::move(*record));
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

std::optional<RecordedExit> read_exit_file(const std::string& path) {
  std::istringstream text(text_in(path).value_or(""));
  RecordedExit exit;
  text >> exit.code;
  struct stat info {};
  if (!text || ::stat(path.c_str(), &info) != 0) return std::nullopt;
  exit.at = WallTime(std::chrono::seconds(info.st_mtime));
  return exit;
}

}  // namespace ddprun::submit
