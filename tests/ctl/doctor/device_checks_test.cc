// SPDX-License-Identifier: Apache-2.0
// Network, environment, GPUs, RDMA and the rendezvous, each as ok, warn and fail.
#include "tests/ctl/doctor/fake_root.h"
#include "tests/support/catch.h"

namespace ddprun::doctor {
namespace {

using ddprun::test::Contains;

std::string route(const std::string& interface, int metric) {
  return interface + "\t00000000\t0100000A\t0003\t0\t0\t" + std::to_string(metric) +
         "\t00000000\t0\t0\t0\n";
}

Facts with_variable(const std::string& name, const std::string& value) {
  FakeRoot root;
  root.write("/proc/self/status", "Cpus_allowed_list:\t0-3")
      .gpu("0000:3b:00.0")
      .interface("eth0", 1500, 0);
  Facts facts = root.facts();
  facts.environment[name] = value;
  return facts;
}

TEST_CASE("doctor: small frames on a very fast link warn, and MTUs that differ at one speed") {
  FakeRoot root;
  CHECK(verdict("mtu", root) == Verdict::kSkipped);
  CHECK(verdict("mtu", root.interface("eth0", 1500, 10'000)) == Verdict::kOk);
  CHECK(verdict("mtu", root.interface("eth1", 9000, 100'000)) == Verdict::kOk);
  CHECK(verdict("mtu", root.interface("eth2", 9000, 10'000)) == Verdict::kWarn);
  root.interface("eth2", 1500, 200'000);
  CHECK_THAT(judged("mtu", root.facts()).fix, Contains("ip link set eth2 mtu 9000"));
}

TEST_CASE("doctor: the interface is the default route's, or the one towards the rendezvous") {
  FakeRoot root;
  const std::string file = "/proc/net/route";
  CHECK(verdict("interface", root) == Verdict::kSkipped);
  CHECK(verdict("interface", root.write(file, route("eth0", 100) + route("wlan0", 600))) ==
        Verdict::kOk);
  CHECK(verdict("interface", root.write(file, route("eth0", 100) + route("eth1", 100))) ==
        Verdict::kWarn);
  CHECK(verdict("interface", root.write(file, route("docker0", 0))) == Verdict::kWarn);
  Facts facts = root.facts();
  facts.route.not_asked.clear();
  CHECK(judged("interface", facts).verdict == Verdict::kUnknown);
  facts.route.answer = RouteAnswer{"", "ib0", "10.0.0.7"};
  CHECK(judged("interface", facts).verdict == Verdict::kOk);
  facts.route.answer->interface = "lo";
  CHECK(judged("interface", facts).verdict == Verdict::kWarn);
  facts.route.answer->failure = "no route to 10.1.2.3";
  CHECK(judged("interface", facts).verdict == Verdict::kFail);
}

TEST_CASE("doctor: a host's own name that is unknown, or loopback alone, warns") {
  Facts facts;
  facts.host_name = "gpu07";
  facts.own_name.not_asked.clear();
  CHECK(judged("host_name", facts).verdict == Verdict::kUnknown);
  facts.own_name.answer = NameAnswer{"", {"127.0.1.1", "10.0.0.7"}};
  CHECK(judged("host_name", facts).verdict == Verdict::kOk);
  facts.own_name.answer->addresses = {"127.0.1.1", "::1"};
  CHECK(judged("host_name", facts).verdict == Verdict::kWarn);
  facts.own_name.answer = NameAnswer{"can't resolve host name \"gpu07\"", {}};
  CHECK_THAT(judged("host_name", facts).seen, Contains("can't resolve"));
  CHECK(judged("host_name", facts).verdict == Verdict::kWarn);
}

TEST_CASE("doctor: variables that stop or slow down jobs") {
  struct Hazard {
    const char *check, *name, *value;
    Verdict wanted;
  };
  for (const Hazard& each :
       {Hazard{"cuda_visible_devices", "OTHER", "", Verdict::kOk},
        {"cuda_visible_devices", "CUDA_VISIBLE_DEVICES", "0", Verdict::kOk},
        {"cuda_visible_devices", "CUDA_VISIBLE_DEVICES", "GPU-8932f937", Verdict::kOk},
        {"cuda_visible_devices", "CUDA_VISIBLE_DEVICES", "0,1", Verdict::kWarn},
        {"cuda_visible_devices", "CUDA_VISIBLE_DEVICES", "", Verdict::kWarn},
        {"socket_interfaces", "OTHER", "", Verdict::kOk},
        {"socket_interfaces", "NCCL_SOCKET_IFNAME", "eth", Verdict::kOk},
        {"socket_interfaces", "NCCL_SOCKET_IFNAME", "^docker", Verdict::kOk},
        {"socket_interfaces", "NCCL_SOCKET_IFNAME", "=eth", Verdict::kWarn},
        {"socket_interfaces", "NCCL_SOCKET_IFNAME", "ib0", Verdict::kWarn},
        {"socket_interfaces", "GLOO_SOCKET_IFNAME", "eth0", Verdict::kOk},
        {"socket_interfaces", "GLOO_SOCKET_IFNAME", "eth", Verdict::kWarn},
        {"proxies", "OTHER", "", Verdict::kOk},
        {"proxies", "https_proxy", "http://proxy:3128", Verdict::kWarn},
        {"launch_blocking", "CUDA_LAUNCH_BLOCKING", "0", Verdict::kOk},
        {"launch_blocking", "CUDA_LAUNCH_BLOCKING", "1", Verdict::kWarn},
        {"omp_num_threads", "OTHER", "", Verdict::kOk},
        {"omp_num_threads", "OMP_NUM_THREADS", "4", Verdict::kOk},
        {"omp_num_threads", "OMP_NUM_THREADS", "5", Verdict::kWarn},
        {"omp_num_threads", "OMP_NUM_THREADS", "all", Verdict::kWarn}}) {
    INFO(each.check << " " << each.name << "=" << each.value);
    CHECK(judged(each.check, with_variable(each.name, each.value)).verdict == each.wanted);
  }
  Facts limited = with_variable("OMP_NUM_THREADS", "2");
  limited.cpu_quota = 1.5;
  CHECK(judged("omp_num_threads", limited).verdict == Verdict::kOk);
  limited.cpu_quota = 1;
  CHECK(judged("omp_num_threads", limited).verdict == Verdict::kWarn);
  Facts facts = with_variable("https_proxy", "http://proxy:3128");
  facts.environment["no_proxy"] = "localhost";
  CHECK(judged("proxies", facts).verdict == Verdict::kOk);
}

TEST_CASE("doctor: a GPU without a driver fails, one that the driver left out, too") {
  FakeRoot root;
  for (const char* name : {"gpu_driver", "gpu_devices", "gpu_xid", "gpu_memory"}) {
    CHECK(verdict(name, root) == Verdict::kSkipped);
  }
  root.gpu("0000:3b:00.0", false);
  CHECK(verdict("gpu_driver", root) == Verdict::kFail);
  root.gpu("0000:3b:00.0");
  CHECK(judged("gpu_driver", root.facts()).seen == "550.54.15");
  CHECK(verdict("gpu_devices", root) == Verdict::kWarn);
  root.write("/dev/nvidiactl", "").write("/dev/nvidia0", "");
  CHECK(verdict("gpu_devices", root) == Verdict::kOk);
  root.gpu("0000:5e:00.0", false);
  CHECK(verdict("gpu_devices", root) == Verdict::kFail);
  root.write("/sys/bus/pci/devices/0000:5e:00.0/uevent", "DRIVER=vfio-pci\nPCI_CLASS=30200");
  CHECK(verdict("gpu_devices", root) == Verdict::kOk);
}

TEST_CASE("doctor: Xid errors of the last hours fail, warn or are the program's own") {
  FakeRoot root;
  root.gpu("0000:3b:00.0").write("/proc/uptime", "20000.00 100.00");
  CHECK(verdict("gpu_xid", root) == Verdict::kSkipped);
  const auto log = [&](double seconds, int xid) {
    const auto microseconds = static_cast<long long>(seconds * 1e6);
    root.write("/dev/kmsg", "6,1,5,-;eth0: link becomes ready\n4,2," +
                                std::to_string(microseconds) + ",-;NVRM: Xid (PCI:0000:3b:00): " +
                                std::to_string(xid) + ", pid=71, name=python");
    return judged("gpu_xid", root.facts());
  };
  CHECK(log(19'000, 79).verdict == Verdict::kFail);
  CHECK_THAT(log(19'000, 79).seen, Contains("Xid 79, the last one of 0000:3b:00"));
  CHECK(log(19'000, 63).verdict == Verdict::kWarn);
  CHECK(log(19'000, 31).verdict == Verdict::kOk);
  CHECK(log(12'000, 79).verdict == Verdict::kOk);
}

TEST_CASE("doctor: memory of a GPU that a process holds warns, and no answer is unknown") {
  Facts facts;
  facts.gpu_memory.not_asked.clear();
  CHECK(judged("gpu_memory", facts).verdict == Verdict::kUnknown);
  facts.gpu_memory.answer = GpuMemoryAnswer{true, ""};
  CHECK(judged("gpu_memory", facts).verdict == Verdict::kOk);
  facts.gpu_memory.answer->holders = "GPU 0: 12.0 GiB by pid 71";
  CHECK(judged("gpu_memory", facts).verdict == Verdict::kWarn);
  facts.gpu_memory.answer->is_known = false;
  CHECK(judged("gpu_memory", facts).verdict == Verdict::kSkipped);
}

TEST_CASE("doctor: RDMA ports that are down beside others warn, half up or all down they fail") {
  FakeRoot root;
  CHECK(verdict("rdma_ports", root) == Verdict::kSkipped);
  CHECK(verdict("rdma_ports", root.rdma_port("mlx5_0", "1: DOWN")) == Verdict::kFail);
  CHECK(verdict("rdma_ports", root.rdma_port("mlx5_1", "4: ACTIVE")) == Verdict::kWarn);
  CHECK(verdict("rdma_ports", root.rdma_port("mlx5_0", "4: ACTIVE")) == Verdict::kOk);
  CHECK(verdict("rdma_ports", root.rdma_port("mlx5_0", "2: INIT")) == Verdict::kFail);
  Facts facts = root.facts();
  facts.rdma.answer.reset();
  CHECK(judged("rdma_ports", facts).verdict == Verdict::kUnknown);
}

TEST_CASE("doctor: rates of ports of one kind that differ warn") {
  FakeRoot root;
  root.rdma_port("mlx5_0", "4: ACTIVE").rdma_port("mlx5_1", "4: ACTIVE");
  CHECK(verdict("rdma_rate", root) == Verdict::kOk);
  root.rdma_port("mlx5_bond_0", "4: ACTIVE", "25 Gb/sec (1X EDR)", "Ethernet");
  CHECK(verdict("rdma_rate", root) == Verdict::kOk);
  CHECK(verdict("rdma_rate", root.rdma_port("mlx5_1", "4: ACTIVE", "100 Gb/sec (1X NDR)")) ==
        Verdict::kWarn);
}

TEST_CASE("doctor: a link that went down often, by the days since the start, warns") {
  FakeRoot root;
  root.rdma_port("mlx5_0", "4: ACTIVE").write("/proc/uptime", "100.0 1.0");
  const std::string file = "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed";
  CHECK(verdict("rdma_link_downed", root) == Verdict::kOk);
  CHECK(verdict("rdma_link_downed", root.write(file, "6")) == Verdict::kWarn);
  CHECK(verdict("rdma_link_downed", root.write("/proc/uptime", "864000.0 1.0")) == Verdict::kOk);
}

TEST_CASE("doctor: a RoCE port wants a GID of version 2") {
  FakeRoot root;
  root.rdma_port("mlx5_0", "4: ACTIVE");
  CHECK(verdict("rdma_gids", root) == Verdict::kSkipped);
  root.rdma_port("mlx5_0", "4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet");
  const std::string start = "/sys/class/infiniband/mlx5_0/ports/1/";
  root.write(start + "gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001")
      .write(start + "gid_attrs/types/0", "IB/RoCE v1")
      .write(start + "gids/1", "0000:0000:0000:0000:0000:0000:0000:0000");
  CHECK(verdict("rdma_gids", root) == Verdict::kWarn);
  root.write(start + "gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0007")
      .write(start + "gid_attrs/types/3", "RoCE v2");
  CHECK(judged("rdma_gids", root.facts()).seen == "mlx5_0 port 1 index 3");
}

TEST_CASE("doctor: neither libdw nor py-spy warns, one of them is enough to read stacks") {
  Facts facts;
  CHECK(judged("stacks", facts).verdict == Verdict::kSkipped);
  facts.stack_readers.not_asked.clear();
  CHECK(judged("stacks", facts).verdict == Verdict::kUnknown);
  for (const bool libdw : {false, true}) {
    for (const bool py_spy : {false, true}) {
      facts.stack_readers.answer = StackReaders{libdw, py_spy};
      CHECK(judged("stacks", facts).verdict == (libdw || py_spy ? Verdict::kOk : Verdict::kWarn));
    }
  }
  CHECK_THAT(judged("stacks", facts).seen, Contains("libdw and py-spy"));
}

TEST_CASE("doctor: the rendezvous: silent, away, with another clock, of another version") {
  Facts facts;
  facts.endpoint = "head:29400";
  CHECK(judged("endpoint", facts).verdict == Verdict::kSkipped);
  facts.rendezvous.not_asked.clear();
  CHECK(judged("endpoint", facts).verdict == Verdict::kUnknown);
  facts.rendezvous.answer = EndpointAnswer{"can't connect to head:29400", "", {}};
  CHECK(judged("endpoint", facts).verdict == Verdict::kFail);
  CHECK(judged("endpoint_clock", facts).verdict == Verdict::kSkipped);
  CHECK(judged("endpoint_version", facts).verdict == Verdict::kSkipped);
  facts.rendezvous.answer = EndpointAnswer{"", DDPRUN_VERSION, 1.5};
  for (const char* name : {"endpoint", "endpoint_clock", "endpoint_version"}) {
    CHECK(judged(name, facts).verdict == Verdict::kOk);
  }
  facts.rendezvous.answer = EndpointAnswer{"", std::string(DDPRUN_VERSION) + ".1", -2.5};
  CHECK(judged("endpoint_clock", facts).seen == "its clock is 2.5 s behind ours");
  CHECK(judged("endpoint_clock", facts).verdict == Verdict::kWarn);
  CHECK(judged("endpoint_version", facts).verdict == Verdict::kWarn);
  facts.rendezvous.answer->version = "9.0.0";
  CHECK(judged("endpoint_version", facts).verdict == Verdict::kFail);
}

}  // namespace
}  // namespace ddprun::doctor
