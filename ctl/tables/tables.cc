// SPDX-License-Identifier: Apache-2.0
#include "ctl/tables/tables.h"

#include <boost/json/value.hpp>
#include <cstdint>
#include <iomanip>
#include <sstream>

#include "common/error.h"
#include "common/json.h"
#include "common/text.h"

namespace ddprun::ctl {

namespace json = boost::json;

namespace {

// Returns a text on one line, whatever it contains. Throws if there is no such text.
std::string text_at(const boost::json::value& object, const char* name) {
  return one_line(std::string(object.at(name).as_string()));
}

struct Row {
  std::string id, phase, round, nodes;
  std::string exit_code = {}, ended = {}, why = {};  // of a job that is over
};

Row live_row(const json::value& job) {
  return {text_at(job, "run_id"), text_at(job, "phase"),
          std::to_string(job.at("round").to_number<int>()),
          concat(job.at("nodes").as_array().size(), " of ", job.at("max_nodes").to_number<int>())};
}

Row finished_row(const json::value& job) {
  return {text_at(job, "run_id"),
          text_at(job, "phase"),
          std::to_string(job.at("rounds").to_number<int>()),
          std::to_string(job.at("num_nodes").to_number<int>()),
          std::to_string(job.at("exit_code").to_number<int>()),
          text_at(job, "ended"),
          text_at(job, "reason")};
}

void print(std::ostream& table, const Row& row) {
  std::ostringstream line;
  line << std::left << std::setw(32) << row.id << ' ' << std::setw(10) << row.phase << ' '
       << std::setw(6) << row.round << ' ' << std::setw(12) << row.nodes << ' ' << std::setw(5)
       << row.exit_code << ' ' << std::setw(21) << row.ended << ' ' << row.why;
  std::string text = line.str();
  text.erase(text.find_last_not_of(' ') + 1);
  table << text << '\n';
}

std::uint64_t number_at(const json::value& object, const char* name) {
  return object.at(name).to_number<std::uint64_t>();
}

// Returns "12", or "12 of 4096" if the page also has a limit.
std::string of_limit(const json::value& object, const std::string& name) {
  std::string text = std::to_string(number_at(object, name.c_str()));
  const json::value* most = object.as_object().if_contains("max_" + name);
  return most == nullptr ? text : concat(text, " of ", most->to_number<std::uint64_t>());
}

// Returns "2 d 3 h", "3 h", "12 min 5 s" or "5 s".
std::string time_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds < 0 ? 0 : seconds);
  const std::uint64_t days = whole / 86'400, hours = whole / 3'600 % 24, minutes = whole / 60 % 60;
  const auto both = [](std::uint64_t large, const char* unit, std::uint64_t small,
                       const char* small_unit) {
    return concat(large, unit, small > 0 ? concat(' ', small, small_unit) : "");
  };
  if (days > 0) return both(days, " d", hours, " h");
  if (hours > 0) return both(hours, " h", minutes, " min");
  if (minutes > 0) return both(minutes, " min", whole % 60, " s");
  return concat(whole, " s");
}

// Returns the role of a rendezvous with several endpoints; an older page has no roles.
std::string role_text(const json::value& all) {
  const json::value& role = json_at::at(all, "role");
  if (role.is_null()) return "";
  if (role.as_string() == "leader") return "leader";
  const bool is_known = json_at::at(all, "leader").is_string();
  const std::string trouble(json_at::text(all, "etcd_trouble"));
  return concat(is_known ? "standby of " + text_at(all, "leader") : "standby; it knows no leader",
                trouble.empty() ? "" : "; ", one_line(trouble));
}

std::string jobs_text(const json::value& jobs) {
  const double kept = jobs.at("keep_finished_seconds").to_number<double>();
  const std::string live = of_limit(jobs, "live") + " live";
  if (kept == 0) return live + ", none kept once it is over";
  return concat(live, ", ", of_limit(jobs, "finished"), " that are over, kept for ",
                time_text(kept));
}

std::string server_text(const json::value& store) {
  std::string text = concat(of_limit(store, "keys"), " keys, ", of_limit(store, "bytes"),
                            " bytes, ", of_limit(store, "connections"), " connections, ",
                            number_at(store, "requests"), " requests");
  const std::uint64_t slow = number_at(store, "slow_readers");
  if (slow > 0) text += concat(", ", slow, " clients read slowly");
  return text;
}

bool stands_by(const json::value& all) { return json_at::text(all, "role") == "standby"; }

// Describes a standby's journal: a copy, or, with etcd, none.
std::string standbys_journal_text(const json::value& journal) {
  if (journal.is_null()) return "none of its own: the jobs are the leader's";
  const std::string path = text_at(journal, "path");
  if (journal.at("kept").as_bool())
    return concat("in ", path, ", the leader's jobs are copied to it");
  return concat("takes no copy: ", text_at(journal, "trouble"), " (", path, ")");
}

// Says what happens to jobs while the journal can't be written.
const char* meanwhile(const json::value& journal) {
  const json::value* waits = journal.as_object().if_contains("jobs_wait");
  return waits != nullptr && *waits == true ? "nothing is decided" : "jobs go on in memory";
}

std::string journal_text(const json::value& all) {
  const json::value& journal = all.at("journal");
  if (stands_by(all)) return standbys_journal_text(journal);
  if (journal.is_null()) return "none (--state-dir): jobs end with this process";
  const std::string path = text_at(journal, "path");
  if (journal.at("kept").as_bool()) return "kept in " + path;
  return concat("not kept for ", time_text(journal.at("trouble_seconds").to_number<double>()), ", ",
                meanwhile(journal), ": ", text_at(journal, "trouble"), " (", path, ")");
}

}  // namespace

std::string jobs_table(const std::string& page) {
  std::ostringstream table;
  try {
    const json::value all = parsed_json(page);
    const json::object& object = all.as_object();
    const json::array& jobs = all.at("jobs").as_array();
    const json::value* finished = object.if_contains("finished");  // none from an older ddprund
    const json::value* journal = object.if_contains("journal");
    if (journal != nullptr && journal->is_object() && !journal->at("kept").as_bool()) {
      table << "not kept now, " << meanwhile(*journal) << ": " << text_at(*journal, "trouble")
            << '\n';
    }
    const bool any_finished = finished != nullptr && !finished->as_array().empty();
    if (jobs.empty() && !any_finished) return table.str() + "no jobs\n";
    Row head{"JOB", "PHASE", "ROUND", "NODES"};
    if (any_finished) head.exit_code = "EXIT", head.ended = "ENDED", head.why = "WHY";
    print(table, head);
    for (const json::value& job : jobs) print(table, live_row(job));
    if (!any_finished) return table.str();
    for (const json::value& job : finished->as_array()) print(table, finished_row(job));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kProtocol,
                concat("/v1/jobs is not what was expected: ", json_trouble(error)));
  }
  return table.str();
}

std::string status_table(const std::string& page) {
  std::ostringstream table;
  const auto fact = [&table](const char* name, const std::string& text) {
    table << std::left << std::setw(16) << name << text << '\n';
  };
  try {
    const json::value all = parsed_json(page);
    const json::value& agents = all.at("agents");
    const json::value& handshakes = all.at("handshakes");
    const json::value& stores = all.at("stores");
    fact("version", text_at(all, "version"));
    fact("process",
         concat(number_at(all, "pid"), all.at("embedded").as_bool() ? ", a ddprun" : ", ddprund",
                ", up ", time_text(all.at("uptime_seconds").to_number<double>())));
    if (const std::string role = role_text(all); !role.empty()) fact("role", role);
    for (const json::value& address : all.at("addresses").as_array()) {
      fact("listens on", one_line(std::string(address.as_string())));
    }
    fact("token", all.at("token").as_bool() ? "on" : "off");
    fact("TLS", all.at("tls").as_bool() ? "on" : "off");
    fact("jobs", jobs_text(all.at("jobs")));
    fact("agents", of_limit(agents, "joined"));
    fact("handshakes",
         concat(of_limit(handshakes, "under_way"), ": ", of_limit(handshakes, "silent"),
                " silent, ", of_limit(handshakes, "requests"), " in their request, ",
                of_limit(handshakes, "proofs"), " before their proof, ",
                of_limit(handshakes, "joins"), " before their join"));
    const json::value& proxied = stores.at("proxied");
    fact("proxied stores", concat(of_limit(proxied, "number"), ": ", of_limit(proxied, "keys"),
                                  " keys, ", of_limit(proxied, "bytes"), " bytes"));
    const json::value& rounds = stores.at("static_rounds");
    fact("static rounds", concat(of_limit(rounds, "number"), ": ", server_text(rounds)));
    fact("plain store", server_text(stores.at("plain")));
    fact("journal", journal_text(all));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kProtocol,
                concat("/v1/status is not what was expected: ", json_trouble(error)));
  }
  return table.str();
}

}  // namespace ddprun::ctl
