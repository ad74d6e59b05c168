/* By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit. */

#ifndef RDMA_MUMMY_ABI_RDMA_CMA_H
#define RDMA_MUMMY_ABI_RDMA_CMA_H

#include <netinet/in.h>
#include <sys/socket.h>
#include "../base.h"

RDMA_MUMMY_BEGIN

#define IBV_PATH_RECORD_REVERSIBLE 128
#define IBV_PATH_FLAG_GMP 1
#define IBV_PATH_FLAG_PRIMARY 2
#define IBV_PATH_FLAG_ALTERNATE 4
#define IBV_PATH_FLAG_OUTBOUND 8
#define IBV_PATH_FLAG_INBOUND 16
#define IBV_PATH_FLAG_INBOUND_REVERSE 32
#define IBV_PATH_FLAG_BIDIRECTIONAL 40
#define RDMA_IB_IP_PS_MASK 18446744073709486080ULL
#define RDMA_IB_IP_PORT_MASK 65535ULL
#define RDMA_IB_IP_PS_TCP 17170432ULL
#define RDMA_IB_IP_PS_UDP 17891328ULL
#define RDMA_IB_PS_IB 20905984ULL
#define RDMA_UDP_QKEY 19088743
#define RAI_PASSIVE 1
#define RAI_NUMERICHOST 2
#define RAI_NOROUTE 4
#define RAI_FAMILY 8
#define RAI_SA 16
#define RAI_DNS 32

struct ibv_path_data;
struct ibv_path_record;
struct ibv_sa_mcmember_rec;
struct ibv_sa_path_rec;
struct ibv_sa_service_rec;
struct rdma_addr;
struct rdma_addrinfo;
struct rdma_cm_event;
struct rdma_cm_id;
struct rdma_cm_join_mc_attr_ex;
struct rdma_conn_param;
struct rdma_event_channel;
struct rdma_ib_addr;
struct rdma_route;
struct rdma_ud_param;

struct ibv_sa_path_rec {
	union ibv_gid dgid;
	union ibv_gid sgid;
	__be16 dlid;
	__be16 slid;
	int raw_traffic;
	__be32 flow_label;
	uint8_t hop_limit;
	uint8_t traffic_class;
	int reversible;
	uint8_t numb_path;
	__be16 pkey;
	uint8_t sl;
	uint8_t mtu_selector;
	uint8_t mtu;
	uint8_t rate_selector;
	uint8_t rate;
	uint8_t packet_life_time_selector;
	uint8_t packet_life_time;
	uint8_t preference;
};

struct ibv_sa_mcmember_rec {
	union ibv_gid mgid;
	union ibv_gid port_gid;
	uint32_t qkey;
	uint16_t mlid;
	uint8_t mtu_selector;
	uint8_t mtu;
	uint8_t traffic_class;
	uint16_t pkey;
	uint8_t rate_selector;
	uint8_t rate;
	uint8_t packet_life_time_selector;
	uint8_t packet_life_time;
	uint8_t sl;
	uint32_t flow_label;
	uint8_t hop_limit;
	uint8_t scope;
	uint8_t join_state;
	int proxy_join;
};

struct ibv_sa_service_rec {
	uint64_t id;
	union ibv_gid gid;
	uint16_t pkey;
	uint32_t lease;
	uint8_t key[16];
	uint8_t name[64];
	uint8_t data8[16];
	uint16_t data16[8];
	uint32_t data32[4];
	uint64_t data64[2];
};

struct ibv_path_record {
	__be64 service_id;
	union ibv_gid dgid;
	union ibv_gid sgid;
	__be16 dlid;
	__be16 slid;
	__be32 flowlabel_hoplimit;
	uint8_t tclass;
	uint8_t reversible_numpath;
	__be16 pkey;
	__be16 qosclass_sl;
	uint8_t mtu;
	uint8_t rate;
	uint8_t packetlifetime;
	uint8_t preference;
	uint8_t reserved[6];
};

struct ibv_path_data {
	uint32_t flags;
	uint32_t reserved;
	struct ibv_path_record path;
};

enum rdma_cm_event_type {
	RDMA_CM_EVENT_ADDR_RESOLVED = 0,
	RDMA_CM_EVENT_ADDR_ERROR = 1,
	RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
	RDMA_CM_EVENT_ROUTE_ERROR = 3,
	RDMA_CM_EVENT_CONNECT_REQUEST = 4,
	RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
	RDMA_CM_EVENT_CONNECT_ERROR = 6,
	RDMA_CM_EVENT_UNREACHABLE = 7,
	RDMA_CM_EVENT_REJECTED = 8,
	RDMA_CM_EVENT_ESTABLISHED = 9,
	RDMA_CM_EVENT_DISCONNECTED = 10,
	RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
	RDMA_CM_EVENT_MULTICAST_JOIN = 12,
	RDMA_CM_EVENT_MULTICAST_ERROR = 13,
	RDMA_CM_EVENT_ADDR_CHANGE = 14,
	RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
	RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
	RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
	RDMA_CM_EVENT_USER = 18,
	RDMA_CM_EVENT_INTERNAL = 19,
};

enum rdma_port_space {
	RDMA_PS_IPOIB = 2,
	RDMA_PS_TCP = 262,
	RDMA_PS_UDP = 273,
	RDMA_PS_IB = 319,
};

struct rdma_ib_addr {
	union ibv_gid sgid;
	union ibv_gid dgid;
	__be16 pkey;
};

struct rdma_addr {
	__extension__ union {
		struct sockaddr src_addr;
		struct sockaddr_in src_sin;
		struct sockaddr_in6 src_sin6;
		struct sockaddr_storage src_storage;
	};
	__extension__ union {
		struct sockaddr dst_addr;
		struct sockaddr_in dst_sin;
		struct sockaddr_in6 dst_sin6;
		struct sockaddr_storage dst_storage;
	};
	union {
		struct rdma_ib_addr ibaddr;
	} addr;
};

struct rdma_route {
	struct rdma_addr addr;
	struct ibv_sa_path_rec *path_rec;
	int num_paths;
};

struct rdma_event_channel {
	int fd;
};

struct rdma_cm_id {
	struct ibv_context *verbs;
	struct rdma_event_channel *channel;
	void *context;
	struct ibv_qp *qp;
	struct rdma_route route;
	enum rdma_port_space ps;
	uint8_t port_num;
	struct rdma_cm_event *event;
	struct ibv_comp_channel *send_cq_channel;
	struct ibv_cq *send_cq;
	struct ibv_comp_channel *recv_cq_channel;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	enum ibv_qp_type qp_type;
};

enum {
	RDMA_MAX_RESP_RES = 255,
	RDMA_MAX_INIT_DEPTH = 255,
};

struct rdma_conn_param {
	const void *private_data;
	uint8_t private_data_len;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t srq;
	uint32_t qp_num;
};

struct rdma_ud_param {
	const void *private_data;
	uint8_t private_data_len;
	struct ibv_ah_attr ah_attr;
	uint32_t qp_num;
	uint32_t qkey;
};

struct rdma_cm_event {
	struct rdma_cm_id *id;
	struct rdma_cm_id *listen_id;
	enum rdma_cm_event_type event;
	int status;
	union {
		struct rdma_conn_param conn;
		struct rdma_ud_param ud;
		uint64_t arg;
	} param;
};

struct rdma_addrinfo {
	int ai_flags;
	int ai_family;
	int ai_qp_type;
	int ai_port_space;
	socklen_t ai_src_len;
	socklen_t ai_dst_len;
	struct sockaddr *ai_src_addr;
	struct sockaddr *ai_dst_addr;
	char *ai_src_canonname;
	char *ai_dst_canonname;
	size_t ai_route_len;
	void *ai_route;
	size_t ai_connect_len;
	void *ai_connect;
	struct rdma_addrinfo *ai_next;
};

enum rdma_cm_join_mc_attr_mask {
	RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1,
	RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 2,
	RDMA_CM_JOIN_MC_ATTR_RESERVED = 4,
};

enum rdma_cm_mc_join_flags {
	RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
	RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
	RDMA_MC_JOIN_FLAG_RESERVED = 2,
};

struct rdma_cm_join_mc_attr_ex {
	uint32_t comp_mask;
	uint32_t join_flags;
	struct sockaddr *addr;
};

struct rdma_event_channel *rdma_create_event_channel(void) RDMA_MUMMY_SYMBOL(rdma_create_event_channel);

void rdma_destroy_event_channel(struct rdma_event_channel *channel) RDMA_MUMMY_SYMBOL(rdma_destroy_event_channel);

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps) RDMA_MUMMY_SYMBOL(rdma_create_id);

int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr) RDMA_MUMMY_SYMBOL(rdma_create_ep);

void rdma_destroy_ep(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_destroy_ep);

int rdma_destroy_id(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_destroy_id);

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr) RDMA_MUMMY_SYMBOL(rdma_bind_addr);

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr, int timeout_ms) RDMA_MUMMY_SYMBOL(rdma_resolve_addr);

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms) RDMA_MUMMY_SYMBOL(rdma_resolve_route);

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr) RDMA_MUMMY_SYMBOL(rdma_create_qp);

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *qp_init_attr) RDMA_MUMMY_SYMBOL(rdma_create_qp_ex);

void rdma_destroy_qp(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_destroy_qp);

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param) RDMA_MUMMY_SYMBOL(rdma_connect);

int rdma_establish(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_establish);

int rdma_listen(struct rdma_cm_id *id, int backlog) RDMA_MUMMY_SYMBOL(rdma_listen);

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id) RDMA_MUMMY_SYMBOL(rdma_get_request);

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param) RDMA_MUMMY_SYMBOL(rdma_accept);

int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len) RDMA_MUMMY_SYMBOL(rdma_reject);

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len) RDMA_MUMMY_SYMBOL(rdma_reject_ece);

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) RDMA_MUMMY_SYMBOL(rdma_notify);

int rdma_disconnect(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_disconnect);

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context) RDMA_MUMMY_SYMBOL(rdma_join_multicast);

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr) RDMA_MUMMY_SYMBOL(rdma_leave_multicast);

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *mc_join_attr, void *context) RDMA_MUMMY_SYMBOL(rdma_join_multicast_ex);

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) RDMA_MUMMY_SYMBOL(rdma_get_cm_event);

int rdma_ack_cm_event(struct rdma_cm_event *event) RDMA_MUMMY_SYMBOL(rdma_ack_cm_event);

__be16 rdma_get_src_port(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_get_src_port);

__be16 rdma_get_dst_port(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_get_dst_port);

struct ibv_context **rdma_get_devices(int *num_devices) RDMA_MUMMY_SYMBOL(rdma_get_devices);

void rdma_free_devices(struct ibv_context **list) RDMA_MUMMY_SYMBOL(rdma_free_devices);

const char *rdma_event_str(enum rdma_cm_event_type event) RDMA_MUMMY_SYMBOL(rdma_event_str);

enum {
	RDMA_OPTION_ID = 0,
	RDMA_OPTION_IB = 1,
};

enum {
	RDMA_OPTION_ID_TOS = 0,
	RDMA_OPTION_ID_REUSEADDR = 1,
	RDMA_OPTION_ID_AFONLY = 2,
	RDMA_OPTION_ID_ACK_TIMEOUT = 3,
};

enum {
	RDMA_OPTION_IB_PATH = 1,
};

int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen) RDMA_MUMMY_SYMBOL(rdma_set_option);

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel) RDMA_MUMMY_SYMBOL(rdma_migrate_id);

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res) RDMA_MUMMY_SYMBOL(rdma_getaddrinfo);

void rdma_freeaddrinfo(struct rdma_addrinfo *res) RDMA_MUMMY_SYMBOL(rdma_freeaddrinfo);

int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask) RDMA_MUMMY_SYMBOL(rdma_init_qp_attr);

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece) RDMA_MUMMY_SYMBOL(rdma_set_local_ece);

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece) RDMA_MUMMY_SYMBOL(rdma_get_remote_ece);

int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints) RDMA_MUMMY_SYMBOL(rdma_resolve_addrinfo);

int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info) RDMA_MUMMY_SYMBOL(rdma_query_addrinfo);

int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg) RDMA_MUMMY_SYMBOL(rdma_write_cm_event);

RDMA_MUMMY_END

#endif
